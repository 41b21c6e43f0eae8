"""The eight checks of Dynamo's conformance kit, on our workers: with fake engines, and all in one with real ones."""

from __future__ import annotations

import asyncio
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from wavepp_worker.dynamo.bootstrap_info import advertised_host

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
        assert (llm.bootstrap_host, llm.bootstrap_port) == (
            (advertised_host("127.0.0.1", fakes.KEY), 4242) if kind == "prefill" else (None, None)
        )

    run(check())


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
        assert tokens(chunks) == ([4] if kind == "prefill" else [4, 5, 6, 7])

    run(check())


@FAKES
def test_eight_requests_at_once(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        answers = await asyncio.gather(
            *(collect(worker, prompt(kind, room), Context(f"r{room}")) for room in range(8))
        )
        assert [reasons(answer) for answer in answers] == [["length"]] * 8

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
        assert reasons(chunks) == ["cancelled"]
        assert time.monotonic() - begin < 2

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
            for worker in workers:
                await asyncio.to_thread(worker.audit)
        finally:
            for worker in [*workers, *workers]:
                await worker.cleanup()

    asyncio.run(asyncio.wait_for(check(), 60))
