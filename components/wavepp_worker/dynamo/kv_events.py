"""KV events: what Dynamo's router is to be told of the blocks every rank of this worker can reuse. Pure.

There is no queue that could overflow and lose an event. What waits is the set of blocks whose state differs
from what was last published, so changes to one block replace each other, and what waits is never more than
the pool holds plus what the router believes it holds. However far the publisher falls behind, what it
publishes next brings the router to the present.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

MAX_BLOCKS_PER_EVENT = 1024
"""Blocks in one event, so that a long prompt is not one huge message."""


@dataclass(frozen=True)
class ReusableBlock:
    """One block that every rank can reuse: its place in the tree, what it is of, and where; ``tokens`` are packed."""

    parent: int | None
    tokens: bytes
    salt: str
    lora: str
    tier: Tier


@dataclass(frozen=True)
class StoredEvent:
    """Publish ``blocks`` on ``tier``, a parent-to-child chain."""

    hashes: tuple[int, ...]
    blocks: tuple[ReusableBlock, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True)
class RemovedEvent:
    """Publish that ``hashes``, leaves first, can no longer be reused on ``tier``."""

    hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True)
class ClearedEvent:
    """Publish that nothing of this worker can be reused: what follows is all there is."""


KvEvent = StoredEvent | RemovedEvent | ClearedEvent


class PendingEvents:
    """The difference between what is reusable and what was published. Not thread-safe."""

    def __init__(self, block_size: int) -> None:
        """Start with nothing reusable and nothing published; ``block`` is in tokens."""
        self._block = block_size
        self._reusable: dict[int, ReusableBlock] = {}
        self._published: dict[int, Tier] = {}
        self._changed: dict[int, None] = {}
        self._anew = False
        self._again: list[int] = []

    def __len__(self) -> int:
        return len(self._changed) + self._anew + len(self._again)

    def apply(self, delta: IndexDelta) -> None:
        """Take in one change of what is reusable."""
        parent = delta.parent
        for position, block_hash in enumerate(delta.stored):
            tokens = token_ids.part(delta.tokens, position * self._block, (position + 1) * self._block)
            self._reusable[block_hash] = ReusableBlock(parent, tokens, delta.salt, delta.lora, delta.tier)
            self._mark(block_hash)
            parent = block_hash
        for block_hash in delta.moved:
            # Of two blocks that share a hash by chance, the other may be gone.
            if (block := self._reusable.get(block_hash)) is not None:
                self._reusable[block_hash] = replace(block, tier=delta.tier)
                self._mark(block_hash)
        for block_hash in delta.removed:
            self._reusable.pop(block_hash, None)
            self._mark(block_hash)

    def begin_anew(self) -> None:
        """Nobody knows any more what the router was told: publish that all is cleared, then all there is."""
        self._anew = True
        self._published.clear()
        self._changed = dict.fromkeys(self._reusable)

    def tell_again(self) -> None:
        """Publish once more what is below the device.

        A router that meets this worker later is told by Dynamo of what is on the device alone. What is stored again has
        to be removed before, as Dynamo counts that.
        """
        self._again = [block_hash for block_hash, tier in self._published.items() if tier != Tier.DEVICE]

    def take(self) -> list[KvEvent]:
        """The events that publish everything pending; counts it as published."""
        events: list[KvEvent] = [ClearedEvent()] if self._anew else []
        self._anew = False
        again, self._again = self._again, []
        told = [block_hash for block_hash in again if block_hash in self._published]
        events.extend(
            _removals((block_hash, self._published.pop(block_hash)) for block_hash in reversed(told))
        )
        for block_hash in told:
            self._mark(block_hash)
        chain: list[int] = []
        left: list[tuple[int, Tier]] = []
        gone: list[int] = []

        def flush() -> None:
            if chain:
                blocks = tuple(self._reusable[block_hash] for block_hash in chain)
                events.append(StoredEvent(tuple(chain), blocks, blocks[0].tier))
            # Where they were before: only now, so that a router never misses what is there; the last of a chain first.
            events.extend(_removals(reversed(left)))
            events.extend(_removals((block_hash, self._published.pop(block_hash)) for block_hash in gone))
            chain.clear()
            left.clear()
            gone.clear()

        for block_hash in self._in_order():
            block = self._reusable.get(block_hash)
            if block is None:
                if chain:
                    flush()
                gone.append(block_hash)
                continue
            continues = bool(chain) and block.parent == chain[-1] and self._alike(chain[-1], block)
            if gone or not continues or len(chain) == MAX_BLOCKS_PER_EVENT:
                flush()
            chain.append(block_hash)
            before = self._published.get(block_hash)
            if before is not None:
                left.append((block_hash, before))
            self._published[block_hash] = block.tier
        flush()
        self._changed.clear()
        return events

    def _in_order(self) -> Iterator[int]:
        """What is pending in the order of the last changes, but nothing before what precedes it in its prefix."""
        waiting = dict(self._changed)
        for block_hash in self._changed:
            if block_hash not in waiting:
                continue
            path = [block_hash]
            while (block := self._reusable.get(path[-1])) is not None and block.parent in waiting:
                path.append(block.parent)
            for each in reversed(path):
                # A block that is gone has no place in what comes: its removal is in its own turn.
                if each == block_hash or each in self._reusable:
                    del waiting[each]
                    yield each

    def _mark(self, block_hash: int) -> None:
        # Moved to the end, so that events keep the order of the last changes: removed leaves first.
        self._changed.pop(block_hash, None)
        block = self._reusable.get(block_hash)
        if (None if block is None else block.tier) != self._published.get(block_hash):
            self._changed[block_hash] = None

    def _alike(self, before: int, block: ReusableBlock) -> bool:
        last = self._reusable[before]
        return (last.salt, last.lora, last.tier) == (block.salt, block.lora, block.tier)


def _removals(blocks: Iterable[tuple[int, Tier]]) -> Iterator[RemovedEvent]:
    for tier, those in groupby(blocks, itemgetter(1)):
        hashes = [block_hash for block_hash, _ in those]
        for first in range(0, len(hashes), MAX_BLOCKS_PER_EVENT):
            yield RemovedEvent(tuple(hashes[first : first + MAX_BLOCKS_PER_EVENT]), tier)


def signed(block_hash: int) -> int:
    """An unsigned 64-bit hash as the signed number of the same bits, which is what Dynamo takes."""
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash
