"""The engine over the real hand-off: KV of two ranks, pulled over loopback while the prompt still runs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.handoff.transport import make_source
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.sampling_params import SamplingParams

from tests.support.decode_bench import Collector
from tests.support.guided import Tokens
from tests.support.handoff_sides import SECRET, room_of
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
CHUNK = 16


class Prefill:
    """What a prefill worker is to a decode worker, with the ranks in this process."""

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.settled: dict[tuple[int, str], str] = {}
        self.cancelled: list[str] = []
        self.server = BootstrapServer(HOST, 0, on_cancel=self._cancel)
        self.sources = [
            make_source(
                "socket",
                rank=rank,
                host=HOST,
                kv=kv,
                dtype=torch.float32,
                timeout=30.0,
                on_settled=lambda request_id, how, rank=rank: self.settled.update({(rank, request_id): how}),
            )
            for rank, kv in enumerate(ranks.kvs)
        ]
        self._blocks = 0
        self._rooms = 100

    def room(self) -> BootstrapAddress:
        self._rooms += 1
        return room_of(self.server, self._rooms)

    def run(
        self, at: BootstrapAddress, tokens: np.ndarray, sampling: SamplingParams, gate: threading.Event
    ) -> None:
        """Prefill in chunks; from the second one on only after ``gate``."""
        table = self.ranks.table(tokens, self._blocks)
        self._blocks += len(table)
        name, count = f"p{at.room}", len(tokens)
        for source in self.sources:
            source.expect(name, SECRET)
            source.offer(name, table, count, 0)
        addresses = tuple(source.address for source in self.sources)
        model_id = self.ranks.info.model_id
        offer = Offer(request_id=name, secret=SECRET, prompt_tokens=count, model_id=model_id, ranks=addresses)
        self.server.register(at.room, offer)

        def compute() -> None:
            for start in range(0, count, CHUNK):
                end = min(start + CHUNK, count)
                logits = self.ranks.compute(table, tokens, start, end)
                for source in self.sources:
                    source.advance(name, end)
                gate.wait(30)
            first = sample(logits, sampling, 0, tokens, [])
            self.server.finish(at.room, FirstToken(first=first, reused_tokens=3))

        threading.Thread(target=compute, daemon=True).start()

    def _cancel(self, offer: Offer) -> None:
        self.cancelled.append(offer.request_id)
        for source in self.sources:
            source.withdraw(offer.request_id)

    def close(self) -> None:
        for source in self.sources:
            source.close()
        self.server.close()


@pytest.fixture
def worker(ranks: Any) -> Iterator[Prefill]:
    prefill = Prefill(ranks)
    yield prefill
    prefill.close()


@pytest.fixture
def engine(tiny_llama: Path) -> Iterator[DecodeEngine]:
    config = DecodeConfig(model=tiny_llama, dtype="float32", kv_tokens=1200, max_model_len=600, block_size=5)
    with DecodeEngine(config) as engine:
        yield engine


@pytest.fixture
def submit(engine: DecodeEngine, worker: Prefill) -> Callable[..., Any]:
    """``submit(tokens, …)``: prefill it, continue it, collect its outputs."""

    def go(tokens: np.ndarray, gate: threading.Event | None = None, **values: Any) -> Any:
        at = worker.room()
        fields = {"request_id": f"d{at.room}", "max_tokens": 12, **values}
        outputs = Collector()
        if gate is None:
            gate = threading.Event()
            gate.set()
        packed = token_ids.pack(tokens)
        engine.submit(DecodeRequest(tokens=packed, handoff=at, **fields), outputs)
        worker.run(at, tokens, fields.get("sampling", SamplingParams()), gate)
        return outputs

    return go


def test_prompts_that_run_here_equal_generate_and_those_that_were_handed_over(
    submit: Any, engine: DecodeEngine, prompt: Any, reference: Any
) -> None:
    lengths = [1, 2, 17, 255, 256, 257, 500]
    sampled = SamplingParams(temperature=1.0, seed=5, repetition_penalty=1.3)

    def local(name: str, tokens: np.ndarray, **values: Any) -> Collector:
        outputs, fields = Collector(), {"max_tokens": 12, **values}
        engine.submit(
            DecodeRequest(request_id=name, tokens=token_ids.pack(tokens), handoff=None, **fields), outputs
        )
        return outputs

    beside = submit(prompt(33), max_tokens=40)
    got = [local(f"local{length}", prompt(length)) for length in lengths]
    drawn = local("drawn", prompt(100), sampling=sampled)
    for length, outputs in zip(lengths, got, strict=True):
        assert outputs.last.error is None
        assert outputs.ids == reference.generate(prompt(length), 12)
        assert (outputs.last.reused_tokens, outputs.last.prompt_tokens) == (0, length)
    assert beside.reason == "length"
    assert beside.ids == reference.generate(prompt(33), 40)
    over = submit(prompt(100), sampling=sampled)
    assert (drawn.reason, over.reason) == ("length", "length")
    assert drawn.ids == over.ids, "drawn alike"
    assert engine.stats().prompt_tokens_computed == sum(lengths) + 100
    assert engine.audit() == {"capacity": 240, "free": 240}


def test_a_prompt_that_runs_here_begins_what_its_answer_must_match(
    engine: DecodeEngine, prompt: Any, tiny_llama: Path
) -> None:
    pytest.importorskip("llguidance")
    outputs = Collector()
    engine.submit(
        DecodeRequest(
            request_id="local",
            tokens=token_ids.pack(prompt(300)),
            max_tokens=30,
            grammar=Grammar("regex", "[a-f]{3,5}x"),
            handoff=None,
        ),
        outputs,
    )
    assert outputs.reason == "stop"
    assert re.fullmatch("[a-f]{3,5}x", Tokens(tiny_llama).text(outputs.ids))


def test_eight_at_once_equal_generate(
    submit: Any, engine: DecodeEngine, worker: Prefill, prompt: Any, reference: Any
) -> None:
    lengths = [1, 2, 15, 16, 17, 33, 100, 333]
    got = [submit(prompt(length), max_tokens=16) for length in lengths]
    for length, outputs in zip(lengths, got, strict=True):
        assert outputs.last.error is None
        assert outputs.ids == reference.generate(prompt(length), 16)
        assert outputs.last.reused_tokens == 3
    stats = engine.stats()
    assert stats.prompt_tokens_computed == 0
    assert stats.kv_bytes_received == sum(lengths) * sum(kv.bytes_per_token for kv in worker.ranks.kvs)
    wait_until(lambda: len(worker.settled) == 2 * len(lengths))
    assert set(worker.settled.values()) == {"received"}
    assert engine.audit() == {"capacity": 240, "free": 240}


def test_sampled_tokens_and_logprobs(submit: Any, prompt: Any, reference: Any) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=11, logprobs=3)
    outputs = submit(prompt(50), sampling=params)
    assert outputs.reason == "length"
    assert outputs.ids == reference.sampled(prompt(50), 12, params)
    assert all(len(token.top) == 3 for token in outputs.tokens)


def test_abort_while_kv_arrives_frees_the_prefill(
    submit: Any, engine: DecodeEngine, worker: Prefill, prompt: Any
) -> None:
    gate = threading.Event()
    outputs = submit(prompt(100), gate, request_id="gone")
    wait_until(lambda: engine.stats().receiving == 1)
    engine.abort("gone")
    assert outputs.reason == "cancelled"
    assert engine.audit()["free"] == 240
    wait_until(lambda: len(worker.settled) == 2)
    assert len(worker.cancelled) == 1
    gate.set()


def test_blocks_are_not_freed_while_they_are_written(
    submit: Any, engine: DecodeEngine, prompt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = engine._loop._kv  # type: ignore[union-attr]
    import_tokens, writing, go_on = kv.import_tokens, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        writing.set()
        go_on.wait(10)
        import_tokens(*args)

    monkeypatch.setattr(kv, "import_tokens", slow)
    outputs = submit(prompt(30), request_id="gone")
    assert writing.wait(10)
    engine.abort("gone")
    time.sleep(0.3)
    assert engine.stats().used_blocks > 0
    assert not outputs.done.is_set()
    go_on.set()
    assert outputs.reason == "cancelled"
    assert engine.stats().used_blocks == 0


def test_abort_before_the_prefill_begins(engine: DecodeEngine, worker: Prefill, prompt: Any) -> None:
    outputs = Collector()
    packed = token_ids.pack(prompt(9))
    request = DecodeRequest(request_id="early", tokens=packed, max_tokens=4, handoff=worker.room())
    engine.submit(request, outputs)
    time.sleep(0.1)
    engine.abort("early")
    assert outputs.reason == "cancelled"


def test_a_failed_prefill_is_told(
    submit: Any, engine: DecodeEngine, worker: Prefill, prompt: Any, reference: Any
) -> None:
    good = submit(prompt(40), max_tokens=60)
    at, outputs = worker.room(), Collector()
    packed = token_ids.pack(prompt(9))
    engine.submit(DecodeRequest(request_id="bad", tokens=packed, max_tokens=4, handoff=at), outputs)
    worker.server.fail(at.room, "the prompt was unlucky")
    assert outputs.last.error_kind == "HandoffError"
    assert "the prompt was unlucky" in outputs.last.error
    assert good.reason == "length"
    assert good.ids == reference.generate(prompt(40), 60)


def test_nobody_there(engine: DecodeEngine, prompt: Any) -> None:
    outputs = Collector()
    packed = token_ids.pack(prompt(9))
    at = BootstrapAddress(host=HOST, port=1, room=1, secret=SECRET)
    engine.submit(DecodeRequest(request_id="bad", tokens=packed, max_tokens=4, handoff=at), outputs)
    assert outputs.last.error_kind == "HandoffError"
