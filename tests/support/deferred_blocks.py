"""The blocks of one rank's device, and what the kernels of a wave find and leave there when the device gets to them.

The content of a complete block or snapshot follows from the key of the prefix it was computed from, as in
``tests/simulator/layers.py``; only here it is bytes, which real tiers copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.kv.window_memory import WindowMemory
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.request_table import LocalRequest

from tests.support.deferred_gpu import GPU
from tests.support.rank_books import BLOCK

BLOCK_BYTES = 32


class WrongContent(AssertionError):
    """Somebody found in a block something else than it relies on."""


class Place(NamedTuple):
    """A block of one window."""

    window: int
    block: int


class Found(NamedTuple):
    """What has to be where; ``reader`` is who relies on it."""

    place: Place
    content: bytes
    reader: str


def content(*parts: object) -> bytes:
    """As many bytes as a block has, others for other parts."""
    return hashlib.sha256(repr(parts).encode()).digest()


def complete(window: int, key: bytes) -> bytes:
    """A full block, or the snapshot at its end."""
    return content("complete", window, key)


def partly(window: int, request_id: str, at: int, end: int) -> bytes:
    """A request's block ``at``, of which its tokens before ``end`` are computed."""
    return content("partly", window, request_id, at, end)


def state(window: int, request_id: str, end: int) -> bytes:
    """A request's running state after its tokens before ``end``."""
    return content("state", window, request_id, end)


class DeferredBlocks:
    """What every block on the device holds now.

    Attributes:
        memories: of each window, as tiers copy them.
        rows: by window, the row in a block table; None for recurrent windows, which have none.
    """

    def __init__(self, specs: Sequence[WindowSpec]) -> None:
        self.specs = specs
        pools = [
            torch.zeros(spec.blocks * BLOCK, 1, BLOCK_BYTES // BLOCK, dtype=torch.uint8) for spec in specs
        ]
        self.memories = [
            WindowMemory([pool], spec.blocks, GPU) for pool, spec in zip(pools, specs, strict=True)
        ]
        with_row = [number for number, spec in enumerate(specs) if spec.kind != "recurrent"]
        self.rows = [with_row.index(number) if number in with_row else None for number in range(len(specs))]
        # Kernels are no calls to torch, as those would be deferred.
        self._bytes = [pool.view(len(pool) // BLOCK, BLOCK_BYTES).numpy() for pool in pools]

    def check(self, found: Found) -> None:
        if self._bytes[found.place.window][found.place.block].tobytes() != found.content:
            kind = self.specs[found.place.window].kind
            raise WrongContent(f"{found.reader} relies on block {found.place.block} of the {kind} window")

    def put(self, place: Place, written: bytes) -> None:
        self._bytes[place.window][place.block] = np.frombuffer(written, dtype=np.uint8)


class WaveKernels:
    """What one wave reads and writes, by what its requests hold when it is queued.

    A wave takes a while. So it writes something of its own before what others may read, and looks again at the end.
    """

    def __init__(
        self, wave_id: int, spans: Sequence[Span], locals_: Sequence[LocalRequest], blocks: DeferredBlocks
    ) -> None:
        self._blocks = blocks
        self._reads: list[Found] = []
        self._writes: dict[Place, bytes] = {}
        self._under_way = content("under way", wave_id)
        for span, local in zip(spans, locals_, strict=True):
            for window, row in enumerate(blocks.rows):
                reader = f"wave {wave_id}, in {span},"
                if row is None:
                    self._recur(window, span, local, reader)
                else:
                    assert local.table is not None
                    self._attend(window, span, local, torch.atleast_2d(local.table)[row].tolist(), reader)

    def begin(self) -> None:
        for found in self._reads:
            self._blocks.check(found)
        for place in self._writes:
            self._blocks.put(place, self._under_way)

    def go_on(self) -> None:
        """Its last layers still read what its first did."""
        for found in self._reads:
            if found.place not in self._writes:
                self._blocks.check(found)

    def end(self) -> None:
        for place, written in self._writes.items():
            self._blocks.check(Found(place, self._under_way, "a wave that writes"))
            self._blocks.put(place, written)

    def _attend(self, window: int, span: Span, local: LocalRequest, table: list[int], reader: str) -> None:
        spec, end = self._blocks.specs[window], span.start + span.length
        first = 0 if spec.kind == "full" else max(0, span.start - spec.span) // BLOCK
        for at in range(first, span.start // BLOCK):
            found = Found(Place(window, table[at]), complete(window, local.keys[at]), reader)
            # Who rides reads what an earlier chunk of this wave completes, layer by layer.
            if self._writes.get(found.place) != found.content:
                self._reads.append(found)
        own = range(span.start // BLOCK, -(-end // BLOCK))
        if span.start % BLOCK:
            before = partly(window, span.request_id, own[0], span.start)
            self._reads.append(Found(Place(window, table[own[0]]), before, reader))
        for at in own:
            full = (at + 1) * BLOCK <= end
            self._write(
                Place(window, table[at]),
                complete(window, local.keys[at]) if full else partly(window, span.request_id, at, end),
            )

    def _recur(self, window: int, span: Span, local: LocalRequest, reader: str) -> None:
        assert local.materialised is not None
        own, resume = local.materialised.states[window], local.materialised.resume[window]
        assert own is not None
        if span.start != local.endpoint:
            before = state(window, span.request_id, span.start)
            self._reads.append(Found(Place(window, own), before, reader))
        elif span.start:
            assert resume is not None
            snapshot = complete(window, local.keys[span.start // BLOCK - 1])
            self._reads.append(Found(Place(window, resume), snapshot, reader))
        self._write(Place(window, own), state(window, span.request_id, span.start + span.length))
        for position, block in local.snapshots[window].items():
            self._write(Place(window, block), complete(window, local.keys[position // BLOCK - 1]))

    def _write(self, place: Place, written: bytes) -> None:
        assert place.block >= 0, f"there is no block for what a wave writes in window {place.window}"
        assert place not in self._writes, f"two chunks of a wave write {place}"
        self._writes[place] = written
