"""The eight checks of Dynamo's conformance kit, and what our own workers promise beyond, on fake engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown
from prometheus_client import generate_latest
from wavepp_worker.dynamo.agg import AggWorker
from wavepp_worker.dynamo.bootstrap_info import HANDOFF_SCHEMA
from wavepp_worker.dynamo.decode import DecodeWorker
from wavepp_worker.dynamo.prefill import PrefillWorker
from wavepp_worker.dynamo.worker import WaveppWorker
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.model.sampling import SampledToken

from tests.support import fake_engines as fakes

KINDS = {"prefill": PrefillWorker, "decode": DecodeWorker, "agg": AggWorker}
Kind = type[PrefillWorker] | type[DecodeWorker] | type[AggWorker]
pytestmark = pytest.mark.usefixtures("fake_engines")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


async def make(kind: str, model: Path) -> Any:
    worker, _ = await KINDS[kind].from_args(["--model", str(model), "--served-model-name", "tiny"])
    return worker


async def started(kind: str, model: Path) -> Any:
    worker = await make(kind, model)
    await worker.start(1)
    return worker


def bootstrap_info(room: int) -> dict[str, Any]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": room}


def prompt(kind: str, room: int = 1, max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    request = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": max_tokens}, **fields}
    if kind == "decode":
        request["bootstrap_info"] = bootstrap_info(room)
        done = fakes.FakeBootstrap.room(room)
        done.first = FirstToken(first=SampledToken(4, -0.5, ((4, -0.5),)), reused_tokens=fakes.REUSED)
        done.settled.set()
    return request


async def collect(worker: WaveppWorker, request: dict[str, Any], context: Context) -> list[dict[str, Any]]:
    return [chunk async for chunk in worker.generate(request, context)]  # type: ignore[attr-defined]


def reasons(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")]


def tokens(chunks: list[dict[str, Any]]) -> list[int]:
    return [token for chunk in chunks for token in chunk["token_ids"]]


class TestConformance:
    def test_start_says_what_to_register(self, kind: str, text_model: Path) -> None:
        async def check() -> None:
            registration = await (await make(kind, text_model)).start(1)
            assert registration.model == str(text_model)
            assert registration.served_model_name == "tiny"
            llm = registration.llm
            assert (llm.context_length, llm.kv_cache_block_size) == (fakes.CONTEXT, 16)
            assert llm.total_kv_blocks == 64
            assert (llm.bootstrap_host, llm.bootstrap_port) == (
                ("127.0.0.1", 4242) if kind == "prefill" else (None, None)
            )

        run(check())

    def test_event_sources_are_stable(self, kind: str, text_model: Path) -> None:
        async def check() -> None:
            worker = await started(kind, text_model)
            ranks = [[source.dp_rank for source in await worker.kv_event_sources()] for _ in range(2)]
            assert ranks[0] == ranks[1] == ([] if kind == "decode" else [0])

        run(check())

    def test_metrics_ranks_are_stable_and_snapshots_quick(self, kind: str, text_model: Path) -> None:
        async def check() -> None:
            worker = await started(kind, text_model)
            assert worker.component_metrics_dp_ranks() == worker.component_metrics_dp_ranks() == [0]
            seconds = []
            for _ in range(20):
                begin = time.perf_counter()
                snapshot = worker.snapshot()
                seconds.append(time.perf_counter() - begin)
            assert min(seconds) < 0.001
            assert snapshot.kv_total_blocks == 64

        run(check())

    def test_prometheus_registration(self, kind: str, text_model: Path) -> None:
        class Metrics:
            auto_labels: dict[str, str] = {}  # noqa: RUF012
            texts: list[Callable[[], str]] = []  # noqa: RUF012

            def register_prometheus_expfmt_callback(self, callback: Callable[[], str]) -> None:
                self.texts.append(callback)

            def register_prometheus_typed_callback(self, callback: object) -> None:
                """Only newer Dynamo versions have it."""

        async def check() -> None:
            worker = await started(kind, text_model)
            metrics = Metrics()
            metrics.texts.clear()
            await worker.register_prometheus(metrics)
            assert "wavepp_" in "".join(text() for text in metrics.texts)

        run(check())

    def test_one_request_ends_in_one_terminal_chunk_which_is_the_last(
        self, kind: str, text_model: Path
    ) -> None:
        async def check() -> None:
            worker = await started(kind, text_model)
            chunks = await collect(worker, prompt(kind), Context("r1"))
            assert reasons(chunks) == ["length"]
            assert chunks[-1]["finish_reason"] == "length"
            assert tokens(chunks) == ([4] if kind == "prefill" else [4, 5, 6, 7])

        run(check())

    def test_eight_requests_at_once(self, kind: str, text_model: Path) -> None:
        async def check() -> None:
            worker = await started(kind, text_model)
            answers = await asyncio.gather(
                *(collect(worker, prompt(kind, room), Context(f"r{room}")) for room in range(8))
            )
            assert [reasons(answer) for answer in answers] == [["length"]] * 8

        run(check())

    def test_a_cancellation_is_seen_within_two_seconds(
        self, kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
        monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 10.0)

        async def check() -> None:
            worker = await started(kind, text_model)
            context = Context("r1")
            asyncio.get_running_loop().call_later(0.2, context.stop_generating)
            begin = time.monotonic()
            chunks = await collect(worker, prompt(kind, max_tokens=1000), context)
            assert reasons(chunks) == ["cancelled"]
            assert time.monotonic() - begin < 2

        run(check())

    def test_cleanup_any_number_of_times_even_without_a_start(self, kind: str, text_model: Path) -> None:
        async def check() -> None:
            worker = await started(kind, text_model)
            await worker.cleanup()
            await worker.cleanup()
            never = await make(kind, text_model)
            await never.cleanup()

        run(check())


def test_prefill_announces_its_room_and_what_it_reused(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        request = prompt("prefill", bootstrap_info=bootstrap_info(77), output_options={"logprobs": 1})
        request["routing"] = {"cache_salt": "s"}
        (chunk,) = await collect(worker, request, Context("r1"))
        assert chunk["disaggregated_params"] == {
            "schema": HANDOFF_SCHEMA,
            "host": "127.0.0.1",
            "port": 4242,
            "room": 77,
        }
        assert chunk["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": fakes.REUSED}
        assert chunk["engine_data"]["kv_cache_hit"] == {
            "prompt_tokens": 3,
            "reused_tokens": fakes.REUSED,
        }
        assert chunk["log_probs"] == [-0.5]
        assert chunk["top_logprobs"] == [[{"rank": 1, "token_id": 4, "token": None, "logprob": -0.5}]]
        room = fakes.FakeBootstrap.room(77)
        assert room.offer is not None
        assert room.offer.request_id == "r1"
        assert room.first == FirstToken(first=SampledToken(4, -0.5, ((4, -0.5),)), reused_tokens=fakes.REUSED)
        (sent,) = worker._handler.engine.requests
        assert (sent.handoff, sent.salt) == (True, "s")

    run(check())


def test_prefill_chooses_a_room_if_the_frontend_did_not(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        chunks = [(await collect(worker, prompt("prefill"), Context(f"r{i}")))[0] for i in range(2)]
        rooms = {chunk["disaggregated_params"]["room"] for chunk in chunks}
        assert len(rooms) == 2
        assert all(fakes.FakeBootstrap.room(room).first is not None for room in rooms)

    run(check())


def test_a_refused_prefill_fails_its_room_too(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        with pytest.raises(InvalidArgument, match="outside the vocabulary"):
            await collect(worker, {"token_ids": [999], "bootstrap_info": bootstrap_info(5)}, Context("r"))
        assert "invalid request: token id 999" in (fakes.FakeBootstrap.room(5).failure or "")

    run(check())


def test_a_replayed_request_does_not_disturb_the_first(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.3)

    async def check() -> None:
        worker = await started("prefill", text_model)
        request = prompt("prefill", bootstrap_info=bootstrap_info(5))
        first = asyncio.create_task(collect(worker, request, Context("r")))
        await asyncio.sleep(0.05)
        with pytest.raises(InvalidArgument, match="in use"):
            await collect(worker, request, Context("r"))
        assert reasons(await first) == ["length"]
        assert fakes.FakeBootstrap.room(5).failure is None

    run(check())


def test_prefill_is_quiescent_only_when_nothing_is_held(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.2)

    async def check() -> None:
        worker = await started("prefill", text_model)
        assert await worker.is_quiescent() is True
        work = asyncio.create_task(collect(worker, prompt("prefill"), Context("r")))
        await asyncio.sleep(0.05)
        assert await worker.is_quiescent() is False
        await work

    run(check())


def test_decode_reports_the_reuse_on_its_first_and_last_chunk(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        chunks = await collect(worker, prompt("decode", output_options={"logprobs": 2}), Context("r"))
        usages = [chunk["completion_usage"] for chunk in (chunks[0], chunks[-1])]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [fakes.REUSED] * 2
        assert usages[1]["completion_tokens"] == 4
        assert all(len(chunk["log_probs"]) == len(chunk["token_ids"]) for chunk in chunks)
        assert [entry["token_id"] for entry in chunks[1]["top_logprobs"][0]] == [5, 6]

    run(check())


def test_decode_finds_the_room_in_a_prefill_result(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", room=3)
        del request["bootstrap_info"]
        params = {"schema": HANDOFF_SCHEMA, "host": "127.0.0.1", "port": 1, "room": 3}
        chunks = await collect(
            worker, {**request, "prefill_result": {"disaggregated_params": params}}, Context("r")
        )
        assert tokens(chunks) == [4, 5, 6, 7]
        other = {"disaggregated_params": {**params, "schema": "x.v9"}}
        with pytest.raises(InvalidArgument, match=r"schema 'x\.v9'"):
            await collect(worker, {**request, "prefill_result": other}, Context("r2"))
        with pytest.raises(InvalidArgument, match="no prefill worker has seen"):
            await collect(worker, request, Context("r3"))

    run(check())


def test_stop_tokens_reach_the_engine_and_end_the_answer(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", max_tokens=50)
        request["stop_conditions"]["stop_token_ids"] = [6]
        chunks = await collect(worker, request, Context("r"))
        assert (tokens(chunks), reasons(chunks)) == ([4, 5, 6], ["stop"])

    run(check())


def test_stop_strings_are_cut_out_of_the_text(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        # Ids 4, 5, 6, 7, … of the byte alphabet in sorted order are "%&'(".
        request = prompt("decode", max_tokens=50, output_options={"logprobs": 1})
        request["stop_conditions"]["stop"] = ["'("]
        chunks = await collect(worker, request, Context("r"))
        assert "".join(chunk["text"] for chunk in chunks) == "%&"
        assert reasons(chunks) == ["stop"]
        assert tokens(chunks) == [4, 5, 6, 7]
        assert chunks[-1]["tokens"] == ["("]
        assert chunks[-1]["top_logprobs"][0][0]["token"] == "("
        assert worker._handler.engine.aborted["r"].is_set()

    run(check())


def test_decode_maps_what_prefill_says(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", room=8)
        room = fakes.FakeBootstrap.room(8)
        room.first, room.failure = None, "rank 1 ran out of patience"
        with pytest.raises(Unknown, match="HandoffError: the prefill failed: rank 1"):
            await collect(worker, request, Context("r"))
        room.failure = "invalid request: too long, shorten it"
        with pytest.raises(InvalidArgument, match=r"^too long, shorten it$"):
            await collect(worker, request, Context("r2"))

    run(check())


@pytest.mark.parametrize("which", KINDS)
def test_probes_need_no_other_worker(which: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(which, text_model)
        payload = await worker.health_check_payload()
        chunks = await collect(worker, payload, Context("probe"))
        assert reasons(chunks) == ["length"]
        assert fakes.FakeBootstrap.rooms == {}

    run(check())


def test_probes_fail_on_a_dead_decode_engine(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        worker._handler.engine.alive = False
        with pytest.raises(EngineShutdown):
            await collect(worker, await worker.health_check_payload(), Context("probe"))

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
    from wavepp_worker.dynamo import worker as worker_module

    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
    left = asyncio.Event()

    class Endpoint:
        unregistered = 0

        async def unregister_endpoint_instance(self) -> None:
            self.unregistered += 1

    async def check() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(worker_module, "_leave", lambda: loop.call_soon_threadsafe(left.set))
        worker = await started("prefill", text_model)
        endpoint = Endpoint()
        await worker.on_endpoint_ready(endpoint)
        work = asyncio.create_task(collect(worker, prompt("prefill"), Context("r")))
        await asyncio.sleep(0.05)
        begin = time.monotonic()
        await asyncio.to_thread(worker._handler.engine.die, "rank 1 exited with code -9")
        with pytest.raises(EngineShutdown, match="rank 1"):
            await work
        with pytest.raises(EngineShutdown, match="rank 1"):
            await collect(worker, prompt("prefill"), Context("r2"))
        await asyncio.wait_for(left.wait(), 5)
        assert time.monotonic() - begin < 5
        assert endpoint.unregistered == 1
        assert worker._handler.engine.closed == 1

    run(check())
    assert "FATAL: the engine died: rank 1 exited with code -9" in capsys.readouterr().err


def test_controls(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        assert worker.supported_controls() == {"audit", "timings"}
        assert (await worker.engine_control("audit", {}))["status"] == "ok"
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


def test_outcomes_are_counted(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        await collect(worker, prompt("agg"), Context("r"))
        with pytest.raises(InvalidArgument):
            await collect(worker, {"token_ids": []}, Context("r2"))
        text = "".join(generate_latest(registry).decode() for registry in worker.registries())
        assert 'wavepp_prefill_requests_total{outcome="finished"} 1.0' in text
        assert 'wavepp_decode_requests_total{outcome="length"} 1.0' in text

    run(check())
