from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown
from wavepp_worker.dynamo import decode_handler
from wavepp_worker.dynamo import worker as worker_module
from wavepp_worker.errors import EngineDead
from wavepp_worker.liveness.stop_times import GRACE_VARIABLE, stop_variables

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    KINDS,
    FakeEndpoint,
    bootstrap_info,
    collect,
    prompt,
    reasons,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_probes_need_no_other_worker(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        payload = await worker.health_check_payload()
        chunks = await collect(worker, payload, Context("probe"))
        assert reasons(chunks) == ["length"]
        assert fakes.FakeBootstrap.rooms == {}

    run(check())


def test_a_client_that_goes_away_takes_its_request_along(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)

    async def check() -> None:
        for which in KINDS:
            worker = await started(which, text_model)
            request = prompt(which, max_tokens=1000)
            stream = worker.generate(request, Context("r"))
            waiting = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await stream.aclose()
            await asyncio.sleep(0.05)
            if which != "decode":
                handler = worker._handler if which == "prefill" else worker._prefill
                assert "r" in handler.engine.aborted
                assert handler.engine.live == {}
            if which != "prefill":
                handler = worker._handler if which == "decode" else worker._decode
                assert handler.engine.aborted["r"].is_set()

    run(check())


def test_a_dying_engine_ends_requests_and_then_the_process(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
    left = asyncio.Event()

    async def check() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(worker_module, "leave_process", lambda code: loop.call_soon_threadsafe(left.set))
        worker = await started("prefill", text_model)
        endpoint = FakeEndpoint()
        await worker.on_endpoint_ready(endpoint)
        work = asyncio.create_task(collect(worker, prompt("prefill"), Context("r")))
        await asyncio.sleep(0.05)
        begin = time.monotonic()
        await asyncio.to_thread(worker._handler.engine.die, "rank 1 was ended by SIGKILL")
        with pytest.raises(EngineShutdown, match="rank 1"):
            await work
        with pytest.raises(EngineShutdown, match="rank 1"):
            await collect(worker, prompt("prefill"), Context("r2"))
        await asyncio.wait_for(left.wait(), 5)
        assert time.monotonic() - begin < 5
        assert endpoint.unregistered == 1
        assert worker._handler.engine.closed == 1

    run(check())
    assert "FATAL: the engine died: rank 1 was ended by SIGKILL" in capsys.readouterr().err


@pytest.fixture
def slow_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer takes a third of a second."""
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.3)
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 0.1)


@pytest.mark.usefixtures("slow_engines")
def test_a_worker_that_is_told_to_stop_ends_its_requests_before_it_closes(
    kind: str, text_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        work = asyncio.create_task(collect(worker, prompt(kind), Context("r")))
        await asyncio.sleep(0.05)
        worker.told_to_stop()
        await worker.cleanup()
        assert reasons(await work) == ["length"]
        assert capsys.readouterr().err.startswith("LEAVING: told to stop; requests have 25 s to end")
        for engine in engines(worker):
            assert engine.closed == 1
        with pytest.raises(EngineShutdown, match="told to stop"):
            raise worker.exception(EngineDead("the engine is not running"))

    run(check())


@pytest.mark.usefixtures("slow_engines")
def test_what_does_not_end_in_time_fails_with_the_reason(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stop_variables(0, {GRACE_VARIABLE: "0"}).items():
        monkeypatch.setenv(name, value)

    async def check() -> None:
        worker = await started(kind, text_model)
        work = asyncio.create_task(collect(worker, prompt(kind, max_tokens=1000), Context("r")))
        await asyncio.sleep(0.05)
        worker.told_to_stop()
        await worker.cleanup()
        assert work.done(), "it hears of it before the process ends"
        sentence = "the worker was told to stop, and its requests had 0 s to end .*; ask again"
        with pytest.raises(EngineShutdown, match=sentence):
            await work

    run(check())


def engines(worker: Any) -> list[Any]:
    handlers = [getattr(worker, name, None) for name in ("_handler", "_prefill", "_decode")]
    return [handler.engine for handler in handlers if handler is not None]


@pytest.mark.usefixtures("slow_engines")
def test_a_worker_that_was_not_told_to_stop_waits_for_nobody(kind: str, text_model: Path) -> None:
    """As one whose engine died."""

    async def check() -> None:
        worker = await started(kind, text_model)
        work = asyncio.create_task(collect(worker, prompt(kind, max_tokens=1000), Context("r")))
        await asyncio.sleep(0.05)
        await worker.cleanup()
        with pytest.raises(EngineShutdown, match="in flight"):
            await work

    run(check())


def test_s38_a_duplicate_id_is_refused_and_hurts_nobody(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of one id, to the same room and to another; then its client goes away, and Dynamo aborts that id."""
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.5)
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 0.1)

    async def check() -> None:
        worker = await started(kind, text_model)
        first = asyncio.create_task(collect(worker, room_prompt(5), Context("same")))
        await asyncio.sleep(0.1)
        for room in (5, 6):
            context = Context("same")
            with pytest.raises(InvalidArgument, match="request id same is in use"):
                await collect(worker, room_prompt(room), context)
            context.stop_generating()
            await worker.abort(context)
        assert reasons(await first) == ["length"], "neither failed nor cancelled"
        if kind == "prefill":
            assert fakes.FakeBootstrap.room(5).failure is None
            assert "in use" in (fakes.FakeBootstrap.room(6).failure or ""), (
                "who waits in the other room is told"
            )
        assert reasons(await collect(worker, room_prompt(7), Context("same"))) == ["length"]

    def room_prompt(room: int) -> dict[str, Any]:
        request = prompt(kind, room=room)
        return request if kind == "agg" else {**request, "bootstrap_info": bootstrap_info(room)}

    run(check())


def test_an_invalid_request_does_not_fail_the_room_of_another(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.3)

    async def check() -> None:
        worker = await started("prefill", text_model)
        request = prompt("prefill", bootstrap_info=bootstrap_info(5))
        first = asyncio.create_task(collect(worker, request, Context("r")))
        await asyncio.sleep(0.1)
        for wrong in ({"token_ids": []}, {"token_ids": [1], "sampling_options": {"seed": "x"}}):
            with pytest.raises(InvalidArgument):
                await collect(worker, {**wrong, "bootstrap_info": bootstrap_info(5)}, Context("s"))
        assert fakes.FakeBootstrap.room(5).failure is None
        assert reasons(await first) == ["length"]

    run(check())


@pytest.mark.parametrize("which", ["decode", "agg"])
def test_an_answer_that_cannot_be_put_into_words_fails_alone(
    which: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such token")

    async def check() -> None:
        worker = await started(which, text_model)
        with monkeypatch.context() as patch:
            patch.setattr(decode_handler.OutputProcessor, "chunk", broken)
            with pytest.raises(Unknown, match=r"RequestFailed: .*request r .*ValueError: no such token"):
                await collect(worker, prompt(which), Context("r"))
        handler = worker._handler if which == "decode" else worker._decode
        assert handler.engine.aborted["r"].is_set(), "nobody wants the rest"
        assert reasons(await collect(worker, prompt(which, room=2), Context("s"))) == ["length"]

    run(check())
