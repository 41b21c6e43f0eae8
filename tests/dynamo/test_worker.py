from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown
from wavepp_worker.dynamo import decode_handler, presence
from wavepp_worker.dynamo import worker as worker_module
from wavepp_worker.dynamo.prefill import PrefillWorker
from wavepp_worker.errors import EngineDead, HandoffError
from wavepp_worker.liveness.stop_times import stop_variables

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    KINDS,
    bootstrap_info,
    collect,
    prompt,
    reasons,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


class Endpoint:
    """Dynamo's, of a worker whose entry in discovery is there while ``entered``."""

    entered = True
    looks = 0
    unregistered = 0

    async def client(self) -> Endpoint:
        return self

    def connection_id(self) -> int:
        return 7

    def instance_ids(self) -> list[int]:
        self.looks += 1
        return [7] if self.entered else []

    async def unregister_endpoint_instance(self) -> None:
        self.unregistered += 1


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
        monkeypatch.setattr(worker_module, "_leave", lambda code: loop.call_soon_threadsafe(left.set))
        worker = await started("prefill", text_model)
        endpoint = Endpoint()
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
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What workers of this test would have ended this process with; no signal to stop ends it either."""
    codes: list[int] = []
    monkeypatch.setattr(worker_module, "_leave", codes.append)
    monkeypatch.setattr(worker_module.faulthandler, "enable", lambda: None)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    yield codes
    for number, handler in before.items():
        signal.signal(number, handler)


def run_worker_as(
    monkeypatch: pytest.MonkeyPatch, model: Path, life: Callable[[PrefillWorker], Awaitable[None]]
) -> None:
    """``run_worker`` with ``life`` for what Dynamo does with the worker."""

    class DynamoWorker:
        def __init__(self, worker: PrefillWorker, _: object) -> None:
            self._worker = worker

        async def run(self) -> None:
            await asyncio.wait_for(life(self._worker), 20)

    monkeypatch.setattr(worker_module, "Worker", DynamoWorker)
    worker_module.run_worker(lambda: PrefillWorker.from_args(["--model", str(model)]))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_worker_that_was_told_to_stop_ends_at_once_with_0(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """A canary that Dynamo's threads asked for while the interpreter ended aborted the process."""

    async def life(worker: PrefillWorker) -> None: ...

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes == [0]


def test_a_worker_that_was_told_to_stop_ends_before_its_event_loop(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """What Dynamo still asked of a stream while the loop was closed was said to be destroyed, as an ERROR."""
    asked: list[asyncio.Task[bool]] = []
    ended: list[bool] = []
    monkeypatch.setattr(worker_module, "_leave", lambda code: ended.append(asked[0].done()))

    async def life(worker: PrefillWorker) -> None:
        asked.append(asyncio.create_task(asyncio.Event().wait()))

    run_worker_as(monkeypatch, text_model, life)
    assert ended == [False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_worker_that_was_told_to_stop_does_not_mind_that_discovery_forgets_it(
    number: signal.Signals,
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        endpoint = Endpoint()
        await worker.on_endpoint_ready(endpoint)
        await until(lambda: endpoint.looks)
        os.kill(os.getpid(), number)
        await until(lambda: worker._presence and worker._presence.cancelled())
        endpoint.entered = False
        await worker.on_endpoint_ready(endpoint)
        await asyncio.sleep(0.1)
        await worker.cleanup()

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes == [0]
    assert "FATAL" not in capsys.readouterr().err


def test_a_worker_that_was_not_told_to_stop_leaves_when_discovery_forgets_it(
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        endpoint = Endpoint()
        await worker.on_endpoint_ready(endpoint)
        await until(lambda: endpoint.looks)
        endpoint.entered = False
        await until(lambda: exit_codes)

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes[0] == worker_module.EXIT_ENGINE_DIED
    assert "FATAL: discovery has forgotten this worker" in capsys.readouterr().err


def test_a_worker_that_is_told_to_stop_before_dynamo_listens_leaves(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    async def life(worker: PrefillWorker) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: exit_codes)

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes[0] == 0


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
    for name, value in stop_variables(0).items():
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


def test_the_limit_of_requests_is_where_dynamos_runtime_looks_for_it(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYN_ENGINE_REQUEST_LIMIT", raising=False)
    arguments = ["--model", str(text_model), "--served-model-name", "tiny"]
    run(KINDS[kind].from_args(arguments))
    assert "DYN_ENGINE_REQUEST_LIMIT" not in os.environ
    run(KINDS[kind].from_args([*arguments, "--engine-request-limit", "3"]))
    assert os.environ["DYN_ENGINE_REQUEST_LIMIT"] == "3"


def test_controls(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        assert worker.supported_controls() == {"audit", "timings", "describe"}
        assert (await worker.engine_control("audit", {}))["status"] == "ok"
        described = await worker.engine_control("describe", {})
        assert described["status"] == "ok"
        assert [engine["role"] for engine in described["engines"]] == (
            ["prefill", "decode"] if kind == "agg" else [kind]
        )
        claimed = "127.0.0.1:4242" if kind == "prefill" else None
        assert described["engines"][0]["bootstrap"] == claimed
        await collect(worker, prompt(kind), Context("r"))
        timings = await worker.engine_control("timings", {"last": 4})
        assert len(timings["timings"]) == (0 if kind == "decode" else 1)
        assert (await worker.engine_control("timings", {"last": "x"}))["status"] == "error"
        assert (await worker.engine_control("other", {}))["status"] == "error"
        handler = worker._handler if kind != "agg" else worker._prefill

        def leak(timeout: float = 30.0) -> None:
            raise HandoffError("block 3 is held")

        handler.engine.audit = leak
        assert await worker.engine_control("audit", {}) == {
            "status": "error",
            "message": "HandoffError: block 3 is held",
        }

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
