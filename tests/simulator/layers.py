"""Fake layers of each kind: what they would read is checked, what they would write is remembered.

The content of a complete block or snapshot is the key of the prefix it was computed from. So whoever reads the
key it expects has found exactly what a computation of its own would have left there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.results import Materialised
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.request_table import LocalRequest

DAMAGED = 0.05
"""Share of the blocks that the disk loses as they are written, and of those that it loses while they are leased."""
FAILS = 0.01
"""How likely a write is the first that the disk does not take, nor any after it."""


class Contents:
    """What every block of every tier of every window holds; a block that nobody wrote to holds None.

    The disk damages blocks at any time, and may fail. What was read of it for a request stays in memory. What was
    copied is there, and what was copied from may be overwritten, for waves that follow.

    Attributes:
        runs: so often moves were copied.
        followed: so many of these waves from now on wait for.
    """

    def __init__(self, windows: int, draw: random.Random) -> None:
        self.runs = self.followed = 0
        self.touched: list[dict[int, int]] = [{} for _ in range(windows)]
        """By window, the last run that read or wrote a block on the device."""
        self._draw = draw
        self._windows: list[tuple[dict[int | None, Any], ...]] = [({}, {}, {}) for _ in range(windows)]
        self._prefetched: dict[str, set[Copy]] = {}
        self._off: list[int] = []

    def device(self, window: int) -> DeviceBlocks:
        """As waves find it."""
        return DeviceBlocks(self, window, self._windows[window][0])

    def spoil(self, window: int, block: int | None) -> None:
        """Write noise to a block on the device, as no wave does."""
        self._windows[window][0][block] = "noise"

    def run(self, moves: Sequence[Move]) -> list[Copy]:
        lost = []
        self.runs += bool(moves)
        for move in moves:
            tiers = self._windows[move.window]
            for tier, slot in (move.source, move.target):
                if tier == Tier.DEVICE:
                    self.touched[move.window][slot] = self.runs
            found = tiers[move.source[0]].get(move.source[1])
            if move.source[0] == Tier.DISK:
                copy = Copy(move.window, move.key, *move.source)
                assert any(copy in those for those in self._prefetched.values()), f"{move} may find nothing"
                found = move.key
            assert found == move.key, f"{move} copies {found}"
            if move.target[0] == Tier.DISK:
                found = self._written(move)
                if found is None:
                    lost.append(Copy(move.window, move.key, *move.target))
            tiers[move.target[0]][move.target[1]] = found
        return lost

    def last_run(self, window: int, blocks: Sequence[int]) -> int:
        return max((self.touched[window].get(block, 0) for block in blocks), default=0)

    def follow(self, runs: int) -> None:
        self.followed = max(self.followed, runs)

    def under_way(self, runs: int) -> bool:
        return runs > self.followed

    def prefetch(self, request_id: str, copies: Sequence[Copy]) -> list[Copy]:
        lost = []
        for copy in copies:
            prefetched = any(copy in those for those in self._prefetched.values())
            disk = self._windows[copy.window][copy.tier]
            if prefetched or (copy.window not in self._off and disk.get(copy.slot) == copy.key):
                self._prefetched.setdefault(request_id, set()).add(copy)
                if self._draw.random() < DAMAGED:
                    disk[copy.slot] = _lost(copy.key)
            else:
                lost.append(copy)
        return lost

    def drop_prefetched(self, request_id: str) -> None:
        self._prefetched.pop(request_id, None)

    def keep_on_disk(self, copies: Collection[Copy]) -> None:
        for number, tiers in enumerate(self._windows):
            kept = {copy.slot for copy in copies if copy.window == number}
            for slot in tiers[Tier.DISK].keys() - kept:
                del tiers[Tier.DISK][slot]

    def switched_off(self) -> list[int]:
        return self._off

    def check(self, cache: RankCache) -> None:
        """With no move under way: whatever the cache would let others reuse is there, or is missed in time."""
        assert not self._prefetched, f"{list(self._prefetched)} have taken or given up their blocks"
        for number, window in enumerate(cache._windows):
            for node in window.tree.nodes.values():
                found = self._windows[number][node.tier].get(node.slot)
                missed = node.tier == Tier.DISK and (found == _lost(node.key) or number in self._off)
                assert found == node.key or missed, (
                    f"{node.key.hex()} of window {number} is reusable, but holds {found}"
                )

    def _written(self, move: Move) -> Any:
        """What the disk holds after it was given a block: that, or something else; None if it has failed."""
        if move.window not in self._off and self._draw.random() < FAILS:
            self._off.append(move.window)
        if move.window in self._off:
            return None
        return _lost(move.key) if self._draw.random() < DAMAGED else move.key


def _lost(key: bytes) -> tuple[str, bytes]:
    """What the disk holds in place of the block of ``key`` that it has lost; nobody knows before it is read."""
    return "lost", key


class DeviceBlocks:
    """The contents of one window's blocks on the device, by block, for waves."""

    def __init__(self, contents: Contents, window: int, blocks: dict[int | None, Any]) -> None:
        self._contents, self._window, self._blocks = contents, window, blocks

    def get(self, block: int) -> Any:
        self._assert_followed(block)
        return self._blocks.get(block)

    def __setitem__(self, block: int, content: Any) -> None:
        self._assert_followed(block)
        self._blocks[block] = content

    def _assert_followed(self, block: int) -> None:
        run, followed = self._contents.touched[self._window].get(block, 0), self._contents.followed
        assert run <= followed, (
            f"a wave that follows {followed} runs of moves touches block {block} of window {self._window}, as run "
            f"{run} does"
        )


class Layers(Protocol):
    """The layers of one window."""

    def next_wave(self) -> None:
        """The chunks that ``begin`` is called with from now on are of another wave."""

    def begin(self, local: LocalRequest, span: Span) -> None:
        """Check all that computing ``span`` reads, and start writing."""

    def end(self, local: LocalRequest, span: Span) -> None:
        """What ``begin`` started to write is complete, unless someone else wrote to it meanwhile."""


class Attention:
    """Reads the blocks of all tokens before, or of the last ones; writes those of its own.

    Every layer writes what all chunks of a wave add before it reads for any of them: so what an earlier chunk of the
    same wave completes can be read.
    """

    def __init__(self, number: int, spec: WindowSpec, block: int, contents: Contents) -> None:
        self._number, self._spec, self._block = number, spec, block
        self._device = contents.device(number)
        self._completing: dict[tuple[str, int], bytes] = {}

    def next_wave(self) -> None:
        self._completing.clear()

    def begin(self, local: LocalRequest, span: Span) -> None:
        claimed, device, block, start = _claimed(local), self._device, self._block, span.start
        table, keys = claimed.tables[self._number], local.keys
        if start == local.endpoint:
            own = [at for at in table if at >= 0]
            assert len(set(own)) == len(own), f"{span.request_id} has a block twice"
        reach = 0 if self._spec.kind == "full" else max(0, start - self._spec.span)
        for at in range(reach // block, start // block):
            found = device.get(table[at])
            if self._spec.kind == "full":
                found = self._completing.get(found, found)
            assert found == keys[at], f"{span} reads {found} as block {at} of window {self._spec.name}"
        if start % block:
            self._assert_own(table, span, start // block)
        for at in self._written(span):
            assert table[at] >= 0, f"{span} has no place for block {at} of window {self._spec.name}"
            device[table[at]] = (span.request_id, at)
            if (at + 1) * block <= start + span.length:
                self._completing[span.request_id, at] = keys[at]

    def end(self, local: LocalRequest, span: Span) -> None:
        table, end = _claimed(local).tables[self._number], span.start + span.length
        for at in self._written(span):
            self._assert_own(table, span, at)
            if (at + 1) * self._block <= end:
                self._device[table[at]] = local.keys[at]

    def _written(self, span: Span) -> range:
        return range(span.start // self._block, -(-(span.start + span.length) // self._block))

    def _assert_own(self, table: list[int], span: Span, at: int) -> None:
        found = self._device.get(table[at])
        assert found == (span.request_id, at), (
            f"block {at} of window {self._spec.name} was overwritten by {found} before {span} was complete"
        )


class Recurrence:
    """Begins with the snapshot at the endpoint; advances one state, and leaves snapshots behind."""

    def __init__(self, number: int, spec: WindowSpec, block: int, contents: Contents) -> None:
        self._number, self._spec, self._block = number, spec, block
        self._device = contents.device(number)

    def next_wave(self) -> None:
        """Nothing is read within a wave."""

    def begin(self, local: LocalRequest, span: Span) -> None:
        claimed, device = _claimed(local), self._device
        state, resume = claimed.states[self._number], claimed.resume[self._number]
        assert state is not None
        if span.start == local.endpoint:
            found = device.get(resume) if resume is not None else None
            expected = local.keys[span.start // self._block - 1] if span.start else None
            assert (resume is None) == (not span.start)
            assert found == expected, (
                f"{span} resumes from {found} in window {self._spec.name}, not from the snapshot at its start"
            )
        else:
            self._assert_own(state, span, span.start)
        own = [state, *local.snapshots[self._number].values(), *([] if resume is None else [resume])]
        assert len(set(own)) == len(own), f"{span.request_id} has a state twice"
        device[state] = (span.request_id, span.start + span.length)
        for position, block in self._written(local, span):
            device[block] = (span.request_id, position)

    def end(self, local: LocalRequest, span: Span) -> None:
        claimed = _claimed(local)
        state = claimed.states[self._number]
        assert state is not None
        self._assert_own(state, span, span.start + span.length)
        for position, block in self._written(local, span):
            self._assert_own(block, span, position)
            self._device[block] = local.keys[position // self._block - 1]

    def _written(self, local: LocalRequest, span: Span) -> list[tuple[int, int]]:
        snapshots, end = local.snapshots[self._number], span.start + span.length
        assert all(span.start < position <= end for position in snapshots), f"{snapshots} within {span}"
        return list(snapshots.items())

    def _assert_own(self, block: int, span: Span, position: int) -> None:
        found = self._device.get(block)
        assert found == (span.request_id, position), (
            f"the state at {position} of window {self._spec.name} was overwritten by {found} before {span}"
        )


def make_layers(specs: Sequence[WindowSpec], block: int, contents: Contents) -> list[Layers]:
    """One per window."""
    return [
        (Recurrence if spec.kind == "recurrent" else Attention)(number, spec, block, contents)
        for number, spec in enumerate(specs)
    ]


def _claimed(local: LocalRequest) -> Materialised:
    assert local.materialised is not None, f"{local.request.request_id} runs without blocks"
    return local.materialised
