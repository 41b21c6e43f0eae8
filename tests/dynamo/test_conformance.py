"""The eight checks of Dynamo's conformance kit, on our workers: with fake engines, and all in one with real ones."""

from __future__ import annotations

import asyncio
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.common.backend.publisher import ComponentSnapshot
from dynamo.common.constants import DisaggregationMode
from dynamo.llm import ModelInput
from wavepp_worker.dynamo import decode_handler, load_snapshots, prefill_handler
from wavepp_worker.dynamo.bootstrap_info import advertised_host
from wavepp_worker.errors import EngineDead
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.model.sampled_token import SampledToken

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    KINDS,
    collect,
    make,
    prompt,
    reasons,
    run,
    started,
    tokens,
)

FAKES = pytest.mark.usefixtures("fake_engines")


@FAKES
def test_start_says_what_to_register(kind: str, text_model: Path) -> None:
    async def check() -> None:
        registration = await (await make(kind, text_model)).start(1)
        assert registration.model == str(text_model)
        assert registration.served_model_name == "tiny"
        llm = registration.llm
        assert (llm.context_length, llm.kv_cache_block_size) == (fakes.CONTEXT, 16)
        assert llm.total_kv_blocks == 64
        assert (llm.max_num_seqs, llm.max_num_batched_tokens) == (64, 64 if kind == "decode" else 512)
        assert (llm.data_parallel_start_rank, llm.data_parallel_size) == (None, None), "one rank, 0"
        assert (llm.bootstrap_host, llm.bootstrap_port) == (
            (advertised_host("127.0.0.1", fakes.KEY), 4242) if kind == "prefill" else (None, None)
        )

    run(check())


@FAKES
def test_from_args_says_which_role_is_served_where(kind: str, text_model: Path) -> None:
    words = ["--model", str(text_model), "--served-model-name", "tiny", "--namespace", "n"]
    worker, config = run(KINDS[kind].from_args(words))
    assert isinstance(worker, KINDS[kind])
    modes = {
        "prefill": DisaggregationMode.PREFILL,
        "decode": DisaggregationMode.DECODE,
        "agg": DisaggregationMode.AGGREGATED,
    }
    assert config.disaggregation_mode == modes[kind]
    # Frontends look for workers of all roles in one namespace, and for a component of each.
    component = "prefill" if kind == "prefill" else "backend"
    assert (config.namespace, config.component, config.endpoint) == ("n", component, "generate")
    assert (config.model_name, config.served_model_name) == (str(text_model), "tiny")
    assert config.model_input == ModelInput.Tokens
    assert config.enable_kv_routing
    assert config.enable_local_indexer


@FAKES
def test_event_sources_are_stable(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        ranks = [[source.dp_rank for source in await worker.kv_event_sources()] for _ in range(2)]
        assert ranks[0] == ranks[1] == ([] if kind == "decode" else [0])

    run(check())


@FAKES
def test_metrics_ranks_are_stable_and_snapshots_quick(kind: str, text_model: Path) -> None:
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


@FAKES
def test_snapshots_go_to_the_publisher_of_the_rank_they_are_of(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Publisher:
        def __init__(self) -> None:
            self.told: list[tuple[int, ComponentSnapshot]] = []
            self.twice = threading.Event()

        def publish(self, dp_rank: int, snapshot: ComponentSnapshot) -> None:
            self.told.append((dp_rank, snapshot))
            if len(self.told) == 2:
                self.twice.set()

    async def check() -> None:
        monkeypatch.setattr(load_snapshots, "INTERVAL_SECONDS", 0.01)
        worker, publisher = await started(kind, text_model), Publisher()
        worker.attach_snapshot_publisher(publisher)
        assert await asyncio.to_thread(publisher.twice.wait, 5)
        await worker.cleanup()
        assert {dp_rank for dp_rank, _ in publisher.told} == set(worker.component_metrics_dp_ranks())
        assert all(snapshot.dp_rank == dp_rank for dp_rank, snapshot in publisher.told)
        # A decode engine has no cache of prefixes, which is not a cache without hits.
        _, snapshot = publisher.told[-1]
        assert snapshot.kv_cache_hit_rate == (None if kind == "decode" else 0.4)

    run(check())


@FAKES
def test_prometheus_registration(kind: str, text_model: Path) -> None:
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


@FAKES
def test_one_request_ends_in_one_terminal_chunk_which_is_the_last(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        chunks = await collect(worker, prompt(kind), Context("r1"))
        assert reasons(chunks) == ["length"]
        assert chunks[-1]["finish_reason"] == "length"
        assert all(chunk["index"] == 0 for chunk in chunks)
        assert chunks[-1]["completion_usage"]["completion_tokens"] == (1 if kind == "prefill" else 4)
        assert tokens(chunks) == ([4] if kind == "prefill" else [4, 5, 6, 7])

    run(check())


@FAKES
def test_eight_requests_at_once(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        asked = [prompt(kind, number, token_ids=[1, 10 * number]) for number in range(8)]
        for number in range(8 if kind == "decode" else 0):
            first = FirstToken(first=SampledToken(10 * number + 1), reused_tokens=0)
            fakes.FakeBootstrap.room(number).first = first
        answers = await asyncio.gather(
            *(collect(worker, request, Context(f"r{number}")) for number, request in enumerate(asked))
        )
        length = 1 if kind == "prefill" else 4
        for number, answer in enumerate(answers):
            assert reasons(answer) == ["length"] == [answer[-1]["finish_reason"]]
            begin = 10 * number + 1
            assert tokens(answer) == list(range(begin, begin + length)), "its own and nobody else's"

    run(check())


@FAKES
def test_a_cancellation_is_seen_within_two_seconds(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 10.0)

    async def check() -> None:
        worker = await started(kind, text_model)
        context = Context("r1")
        asyncio.get_running_loop().call_later(0.2, context.stop_generating)
        begin = time.monotonic()
        chunks = await collect(worker, prompt(kind, max_tokens=1000), context)
        assert reasons(chunks) == ["cancelled"] == [chunks[-1]["finish_reason"]]
        assert time.monotonic() - begin < 2

    run(check())


@FAKES
@pytest.mark.parametrize("which", ["decode", "agg"])
def test_a_cancellation_is_seen_while_tokens_come_faster_than_anybody_waits_for_them(
    which: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 0.01)
    assert decode_handler.POLL_SECONDS > 0.01

    async def check() -> None:
        worker, context = await started(which, text_model), Context("r1")
        asyncio.get_running_loop().call_later(0.1, context.stop_generating)
        chunks = await collect(worker, prompt(which, max_tokens=100), context)
        assert reasons(chunks) == ["cancelled"] == [chunks[-1]["finish_reason"]]
        assert 0 < len(tokens(chunks)) < 50

    run(check())


@FAKES
def test_an_abort_ends_a_request_that_does_not_look(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for handler in (prefill_handler, decode_handler):
        monkeypatch.setattr(handler, "POLL_SECONDS", 10.0)
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 10.0)

    async def check() -> None:
        worker, context = await started(kind, text_model), Context("r1")
        answer = asyncio.create_task(collect(worker, prompt(kind, max_tokens=1000), context))
        await asyncio.sleep(0.1)
        context.stop_generating()
        await worker.abort(context)
        chunks = await asyncio.wait_for(answer, 2)
        assert reasons(chunks) == ["cancelled"] == [chunks[-1]["finish_reason"]]
        assert worker.running == 0

    run(check())


@FAKES
def test_cleanup_any_number_of_times_even_without_a_start(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        await worker.cleanup()
        await worker.cleanup()
        never = await make(kind, text_model)
        await never.cleanup()

    run(check())


@FAKES
def test_cleanup_after_a_start_that_failed(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an agg worker the second engine fails, so the first is there and has to go."""

    def fails(_: object) -> None:
        raise EngineDead("rank 1 did not start")

    engine = fakes.FakePrefillEngine if kind == "prefill" else fakes.FakeDecodeEngine
    monkeypatch.setattr(engine, "start", fails)

    async def check() -> None:
        worker = await make(kind, text_model)
        with pytest.raises(EngineDead, match="rank 1 did not start"):
            await worker.start(1)
        await worker.cleanup()
        await worker.cleanup()
        for name in ("_handler", "_prefill", "_decode"):
            if hasattr(worker, name):
                assert getattr(worker, name).engine.closed == 1

    run(check())


@FAKES
@pytest.mark.parametrize("dp_rank", [None, 0, 3])
def test_s62_of_two_replicas_decode_asks_the_one_that_prefilled(
    text_model: Path, dp_rank: int | None
) -> None:
    """A replica is one rank, whatever a router calls it: where its KV is goes from prefill to decode instead."""

    async def check() -> None:
        first, second, decode = [await started(kind, text_model) for kind in ("prefill", "prefill", "decode")]
        second._handler.bootstrap.port = 4243
        request = {**prompt("prefill"), "routing": {"dp_rank": dp_rank, "prefill_dp_rank": dp_rank}}
        for replica, port in ((first, 4242), (second, 4243)):
            # Told with the answer of the prefill.
            (answer,) = await collect(replica, request, Context(f"told {port}"))
            result = {"disaggregated_params": answer["disaggregated_params"]}
            await collect(decode, {**request, "prefill_result": result}, Context(f"told {port}"))
            # Registered by the replica, whose room the frontend chooses.
            info = {"bootstrap_host": replica._handler.bootstrap_host(), "bootstrap_port": port}
            handed = {**request, "bootstrap_info": {**info, "bootstrap_room": port}}
            await asyncio.gather(
                *(collect(worker, handed, Context(f"{port}")) for worker in (replica, decode))
            )
        asked = [each.handoff for each in decode._handler.engine.requests]
        assert [each.port for each in asked] == [4242, 4242, 4243, 4243]
        assert [each.room for each in asked[1::2]] == [4242, 4243]
        assert len({each.room for each in asked}) == 4
        assert all(each.secret == fakes.KEY.for_room(each.room) for each in asked)

    run(check())


@pytest.mark.soak
def test_real_engines_conform_as_well(tiny_llama: Path) -> None:
    """A prefill worker and the decode worker that it hands over to, and an agg worker."""
    words = ["--model", str(tiny_llama), "--served-model-name", "tiny", "--discovery-backend", "file"]
    words += ["--kv-tokens", "8192"]

    def asked(number: int, length: int = 40, max_tokens: int = 8) -> dict[str, Any]:
        stop = {"max_tokens": max_tokens, "ignore_eos": True}
        return {"token_ids": [(number + place) % 250 for place in range(length)], "stop_conditions": stop}

    async def answer(workers: list[Any], request: dict[str, Any], name: str) -> list[dict[str, Any]]:
        """The last worker's chunks; a prefill worker before it says where the KV is."""
        chunks = await collect(workers[0], request, Context(name))
        for worker in workers[1:]:
            assert [chunk.get("finish_reason") for chunk in chunks] == ["length"]
            params = chunks[0]["disaggregated_params"]
            handed = {**request, "prefill_result": {"disaggregated_params": params}}
            chunks = await collect(worker, handed, Context(name))
        return chunks

    async def check() -> None:
        workers = [(await KINDS[kind].from_args(words))[0] for kind in KINDS]
        try:
            registered = await asyncio.gather(*(worker.start(1) for worker in workers))
            assert [each.model for each in registered] == [str(tiny_llama)] * 3
            prefill, decode, agg = workers
            for worker in workers:
                assert [len(await worker.kv_event_sources()) for _ in range(2)] in ([0, 0], [1, 1])
                assert worker.component_metrics_dp_ranks() == worker.component_metrics_dp_ranks() == [0]
                assert min(timeit.repeat(worker.snapshot, number=1, repeat=20)) < 0.001
            pairs = ([prefill, decode], [agg])
            eight = [answer(pair, asked(number), f"r{number}") for pair in pairs for number in range(8)]
            answers = await asyncio.gather(*eight)
            assert all(reasons(chunks) == ["length"] == [chunks[-1]["finish_reason"]] for chunks in answers)
            assert [tokens(chunks) for chunks in answers[:8]] == [tokens(chunks) for chunks in answers[8:]]
            for worker in (prefill, agg):
                context = Context("given up")
                begun = time.monotonic()
                asyncio.get_running_loop().call_later(0.02, context.stop_generating)
                chunks = await collect(worker, asked(99, length=3000, max_tokens=1000), context)
                assert reasons(chunks) == ["cancelled"]
                assert time.monotonic() - begun < 2
            long = asked(98, max_tokens=4000)
            (first,) = await collect(prefill, long, Context("prefilled"))
            long["prefill_result"] = {"disaggregated_params": first["disaggregated_params"]}
            for worker in (decode, agg):
                context = Context("given up while tokens come")
                begun = time.monotonic()
                asyncio.get_running_loop().call_later(0.5, context.stop_generating)
                chunks = await collect(worker, long, context)
                assert reasons(chunks) == ["cancelled"] == [chunks[-1]["finish_reason"]]
                assert tokens(chunks), "it had begun"
                assert time.monotonic() - begun < 2.5
            for worker in workers:
                await asyncio.to_thread(worker.audit)
        finally:
            for worker in [*workers, *workers]:
                await worker.cleanup()

    asyncio.run(asyncio.wait_for(check(), 60))
