"""A hand-off without a network: real KV, given at the test's pace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from wavepp_worker.errors import RequestTimeout
from wavepp_worker.handoff.decode.received import Moments, Received
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.sampling_params import SamplingParams

from tests.support.handoff_sides import SECRET
from tests.support.stage_pair import StagePair

MOMENTS = Moments(began=0.0, offered=0.0, prefilled=0.0, ended=0.0)


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
    """Gives real KV of ``StagePair`` through a receiver without a network, at the test's pace."""

    def __init__(self, ranks: StagePair) -> None:
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
        return BootstrapAddress(host="127.0.0.1", port=1, room=len(self.rooms) - 1, secret=SECRET)

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
        self,
        at: BootstrapAddress,
        allocate: Callable[[Offer], Any],
        timeout: float,
        state: Any = None,
        on_computed: Callable[[], object] = lambda: None,
    ) -> Received:
        room = self._prefill.rooms[at.room]
        try:
            return await asyncio.wait_for(self._receive(room, allocate, on_computed), timeout)
        except asyncio.TimeoutError:
            raise RequestTimeout(f"not here within {timeout} s") from None
        except asyncio.CancelledError:
            room.cancelled.set()
            raise

    def close(self) -> None:
        self._prefill.closed = True

    async def _receive(
        self, at: Room, allocate: Callable[[Offer], Any], on_computed: Callable[[], object]
    ) -> Received:
        await _opened(at.offer)
        count = len(at.tokens)
        offer = Offer(
            request_id="p", secret=SECRET, prompt_tokens=at.prompt_tokens or count, model_id="", ranks=()
        )
        at.asked.set()
        computed = asyncio.ensure_future(_computed(at, on_computed))
        try:
            table = await allocate(offer)
        finally:
            computed.cancel()
        at.allocated.set()
        await _computed(at, on_computed)
        if at.error is not None:
            raise at.error
        payloads, first = self._prefill.run(at)
        for stage, payload in zip(self._prefill.ranks.stages, payloads, strict=True):
            self._kv.import_tokens(table, 0, count, stage.layers, payload)
        if at.first is not None:
            first = SampledToken(at.first)
        size = sum(len(payload) for payload in payloads)
        end = FirstToken(first=first, reused_tokens=count // 2)
        return Received(offer=offer, first=end, bytes_received=size, moments=MOMENTS)


async def _computed(at: Room, on_computed: Callable[[], object]) -> None:
    await _opened(at.kv)
    on_computed()


async def _opened(gate: threading.Event) -> None:
    while not gate.is_set():
        await asyncio.sleep(0.001)
