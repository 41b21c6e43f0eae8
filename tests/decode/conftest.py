"""A prefill worker and a reference that live in the test's own process."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest
from wavepp_worker.errors import RequestTimeout
from wavepp_worker.handoff.decode.receiver import Received
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.model.info import read_model_info
from wavepp_worker.model.load import load_stage
from wavepp_worker.model.sampling import SampledToken, SamplingParams, sample
from wavepp_worker.model.stage import Chunk

WAIT = 60.0


class Ranks:
    """Two uneven pipeline stages of a model with KV of their own, without a runtime."""

    def __init__(self, model: Path, block: int = 8, blocks: int = 400) -> None:
        self.info = read_model_info(model)
        ends = [0, 2, self.info.num_layers]
        layers = [range(a, b) for a, b in itertools.pairwise(ends)]
        self.stages = [load_stage(model, each, torch.float32, "cpu") for each in layers]
        self.kvs = [stage.make_kv(blocks, block) for stage in self.stages]
        self.block = block
        self._lock = threading.Lock()

    def compute(self, table: torch.Tensor, tokens: np.ndarray, start: int, end: int) -> torch.Tensor:
        """Run positions ``[start, end)`` of a prompt: the last one's logits ``[vocabulary]``."""
        with self._lock:
            data: Any = torch.from_numpy(tokens[start:end].astype(np.int64))
            for stage, kv in zip(self.stages, self.kvs, strict=True):
                output = stage.forward(data, [Chunk(start, end - start, table, True)], kv)
                data = output.activations
            assert output.logits is not None
            return output.logits[0]

    def table(self, tokens: np.ndarray, first: int = 0) -> torch.Tensor:
        return torch.arange(first, first - (-len(tokens) // self.block))


class Reference:
    """transformers' own model, run plainly."""

    def __init__(self, model: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def generate(self, tokens: np.ndarray, count: int, stops: tuple[int, ...] = ()) -> list[int]:
        """Greedy continuation, up to and with one of ``stops``."""
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        mask = torch.ones_like(ids)
        self.model.generation_config.eos_token_id = list(stops) or None
        out = self.model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
        return out[0, len(tokens) :].tolist()

    def sampled(self, tokens: np.ndarray, count: int, params: SamplingParams) -> list[int]:
        """What sampling from one forward of the whole sequence per token gives."""
        generated: list[int] = []
        while len(generated) < count:
            logits = self.logits(tokens, generated)[-1]
            generated.append(sample(logits, params, len(generated), tokens, generated).token)
        return generated

    def logits(self, tokens: np.ndarray, generated: list[int]) -> torch.Tensor:
        """``[1 + generated, vocabulary]``: what each generated token and the next are chosen from."""
        ids = torch.tensor(tokens.astype(np.int64).tolist() + generated)[None]
        with torch.inference_mode():
            return self.model(ids).logits[0, len(tokens) - 1 :]


@dataclass
class Room:
    """One hand-off of the fake transport: what it gives, and gates that hold it up.

    Attributes:
        offer: set when the offer may go out.
        kv: set when KV and first token may arrive.
        error: raised instead of giving the KV.
        cancelled: set once the claim was cancelled.
        asked: set once the decode side was asked for room.
        allocated: set once the decode side gave blocks.
    """

    tokens: np.ndarray
    sampling: SamplingParams = field(default_factory=SamplingParams)
    offer: threading.Event = field(default_factory=threading.Event)
    kv: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    first: int | None = None
    prompt_tokens: int | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    allocated: threading.Event = field(default_factory=threading.Event)


class FakePrefill:
    """Gives real KV of ``Ranks`` through a receiver without a network, at the test's pace."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.rooms: dict[int, Room] = {}
        self.closed = False

    def room(self, tokens: np.ndarray, *, held: bool = False, **values: Any) -> BootstrapAddress:
        """A new room; its gates are open unless ``held``."""
        room = Room(tokens, **values)
        if not held:
            room.offer.set()
            room.kv.set()
        self.rooms[len(self.rooms)] = room
        return BootstrapAddress(host="127.0.0.1", port=1, room=len(self.rooms) - 1)

    def receiver(self, kv: Any, *_: object) -> FakeReceiver:
        return FakeReceiver(self, kv)

    def run(self, room: Room) -> tuple[list[torch.Tensor], SampledToken]:
        ranks, count = self.ranks, len(room.tokens)
        table = ranks.table(room.tokens)
        logits = ranks.compute(table, room.tokens, 0, count)
        first = sample(logits, room.sampling, 0, room.tokens, [])
        return [kv.export_tokens(table, 0, count) for kv in ranks.kvs], first


class FakeReceiver:
    def __init__(self, prefill: FakePrefill, kv: Any) -> None:
        self._prefill = prefill
        self._kv = kv

    async def receive(
        self, host: str, port: int, room: int, allocate: Callable[[Offer], Any], timeout: float
    ) -> Received:
        at = self._prefill.rooms[room]
        try:
            return await asyncio.wait_for(self._receive(at, allocate), timeout)
        except asyncio.TimeoutError:
            raise RequestTimeout(f"not here within {timeout} s") from None
        except asyncio.CancelledError:
            at.cancelled.set()
            raise

    def close(self) -> None:
        self._prefill.closed = True

    async def _receive(self, at: Room, allocate: Callable[[Offer], Any]) -> Received:
        await _opened(at.offer)
        count = len(at.tokens)
        offer = Offer(request_id="p", prompt_tokens=at.prompt_tokens or count, model_id="", ranks=())
        at.asked.set()
        table = await allocate(offer)
        at.allocated.set()
        await _opened(at.kv)
        if at.error is not None:
            raise at.error
        payloads, first = self._prefill.run(at)
        for stage, payload in zip(self._prefill.ranks.stages, payloads, strict=True):
            self._kv.import_tokens(table, 0, count, stage.layers, payload)
        if at.first is not None:
            first = SampledToken(at.first)
        size = sum(len(payload) for payload in payloads)
        end = FirstToken(first=first, reused_tokens=count // 2)
        return Received(offer=offer, first=end, bytes_received=size, seconds=0.0)


async def _opened(gate: threading.Event) -> None:
    while not gate.is_set():
        await asyncio.sleep(0.001)


class Collector:
    """Takes one request's outputs."""

    def __init__(self) -> None:
        self.outputs: list[DecodeOutput] = []
        self.done = threading.Event()

    def __call__(self, output: DecodeOutput) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.done.set()

    def check(self) -> None:
        """Exactly one output has a finish reason, and it is the last."""
        reasons = [output.finish_reason for output in self.outputs]
        assert None not in reasons[-1:], reasons
        assert set(reasons[:-1]) <= {None}, reasons

    @property
    def tokens(self) -> list[SampledToken]:
        return [token for output in list(self.outputs) for token in output.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.token for token in self.tokens]

    @property
    def last(self) -> DecodeOutput:
        assert self.done.wait(WAIT), "no output with a finish reason"
        return self.outputs[-1]

    @property
    def reason(self) -> str | None:
        return self.last.finish_reason

    def wait_for_tokens(self, count: int) -> None:
        until(lambda: len(self.tokens) >= count or self.done.is_set())
        assert len(self.tokens) >= count


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@dataclass
class Bench:
    """A started engine with the fake transport, and what tests say about it."""

    engine: DecodeEngine
    prefill: FakePrefill
    deaths: list[str]
    submitted: int = 0
    collectors: list[Collector] = field(default_factory=list)

    def submit(self, tokens: np.ndarray, at: BootstrapAddress | None = None, **values: Any) -> Collector:
        """Submit a request named ``r0``, ``r1``, …; its room is open unless ``at`` names another."""
        collector = Collector()
        self.engine.submit(self.request(tokens, at, **values), collector)
        self.collectors.append(collector)
        return collector

    def request(self, tokens: np.ndarray, at: BootstrapAddress | None = None, **values: Any) -> DecodeRequest:
        fields: dict[str, Any] = {"request_id": f"r{self.submitted}", "max_tokens": 12, **values}
        self.submitted += 1
        sampling = values.get("sampling", SamplingParams())
        handoff = at or self.prefill.room(tokens, sampling=sampling)
        return DecodeRequest(tokens=tokens.astype("<u4").tobytes(), handoff=handoff, **fields)

    def room(self, at: BootstrapAddress) -> Room:
        return self.prefill.rooms[at.room]


@pytest.fixture(scope="session")
def prompt() -> Callable[..., np.ndarray]:
    """``prompt(length, seed)``: token ids of the tiny models, without special ones."""

    def make(length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng([length, seed]).integers(0, 297, length).astype(np.uint32)

    return make


@pytest.fixture(scope="session")
def ranks(tiny_llama: Path) -> Ranks:
    return Ranks(tiny_llama)


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Reference:
    return Reference(tiny_llama)


@pytest.fixture
def bench(tiny_llama: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """``bench(**config)``: a started engine; at the end it is closed, and audited unless it is dead."""
    started: list[Bench] = []

    def make(**values: Any) -> Bench:
        prefill = FakePrefill(ranks)
        monkeypatch.setattr("wavepp_worker.decode.engine.KVReceiver", prefill.receiver)
        fields = {"dtype": "float32", "kv_tokens": 1024, "max_model_len": 512, "block_size": 4, **values}
        deaths: list[str] = []
        engine = DecodeEngine(DecodeConfig(model=tiny_llama, **fields), on_death=deaths.append)
        engine.start()
        started.append(Bench(engine, prefill, deaths))
        return started[-1]

    yield make
    try:
        for each in started:
            if each.engine.alive:
                audit = each.engine.audit(WAIT)
                assert audit["free"] == audit["capacity"]
                assert each.engine.stats().prompt_tokens_computed == 0
    finally:
        for each in started:
            each.engine.close()
            assert each.prefill.closed
    for each in started:
        for collector in each.collectors:
            assert collector.done.is_set()
            collector.check()


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    return until


@pytest.fixture(scope="session")
def collector() -> type[Collector]:
    return Collector
