"""KV events: what Dynamo's router is to be told of the blocks every rank of this worker can reuse. Pure.

There is no queue that could overflow and lose an event. What waits is the set of blocks that were touched
since the last publication, so changes to one block replace each other, and what waits is never more than
the pool holds plus what the router believes it holds. However far the publisher falls behind, what it
publishes next brings the router to the present.

A router may know less than it was told: who comes later, or misses more events than Dynamo keeps, gets from
Dynamo what is on the device alone. Below the device, a removal therefore is preceded by storing the same blocks
once more: Dynamo's router ends an event at the first block that it does not know, and would believe in those
behind it for ever. Dynamo counts how often a worker stores a block on a tier, and passes on only the removal that
makes the count zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

MAX_BLOCKS_PER_EVENT = 1024
"""Blocks in one event, so that a long prompt is not one huge message."""
CLEAR_ABOVE_BLOCKS = 1024
"""More removals than this, and than blocks that are left, are published as one clear and all that is left."""
AGAIN_BLOCKS = 256
"""Blocks that are told again at a time, so that what has changed meanwhile need not wait for all of them."""


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
        """Start with nothing reusable and nothing published; ``block_size`` is in tokens."""
        self._block = block_size
        self._reusable: dict[int, ReusableBlock] = {}
        self._published: dict[int, ReusableBlock] = {}
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
        self._again.clear()
        self._changed = dict.fromkeys(self._reusable)

    def tell_again(self) -> None:
        """Publish once more what is below the device, bit by bit; without effect while that is under way.

        If there is nothing, publish something that is known: a router that missed events notices it by one that comes.
        """
        if self._again:
            return
        self._again = [key for key, block in self._published.items() if block.tier != Tier.DEVICE]
        if not self._published:
            self._anew = True
        elif not self._again:
            self._again = [next(reversed(self._published))]

    def take(self) -> list[KvEvent]:
        """Events that publish all that is pending, of what is told again a part; counts them as published."""
        events: list[KvEvent] = [ClearedEvent()] if self._anew else []
        self._anew = False
        events.extend(self._told_again())
        come: dict[int, ReusableBlock] = {}
        # A router refuses what is on the device behind what is not. Ranks tell of both in any order, so it waits.
        before_parent: dict[int, None] = {}
        for key, block in _parents_first(
            {key: self._reusable[key] for key in self._changed if key in self._reusable}
        ):
            if block.tier == Tier.DEVICE and not self._follows_what_is_there(block, before_parent):
                before_parent[key] = None
            elif not self._tier_as_published(key):
                come[key] = block
        gone = [key for key in self._changed if self._goes(key, before_parent)]
        if len(gone) > max(CLEAR_ABOVE_BLOCKS, len(self._reusable)):
            self.begin_anew()
            return self.take()
        left = {key: self._published.pop(key) for key in gone}
        # What is stored comes first, so that a router never misses what is there; of what leaves, the last of a prefix
        # does: with a block, a router forgets what it has on the device behind it.
        events.extend(_stored(_parents_first(come)))
        events.extend(_removals(reversed([*_parents_first(left)])))
        self._published.update(come)
        self._changed = before_parent
        return events

    @property
    def telling_again(self) -> bool:
        """Whether ``take`` has more to tell again at once."""
        return bool(self._again)

    def _follows_what_is_there(self, block: ReusableBlock, before_parent: Mapping[int, None]) -> bool:
        """Whether what precedes a block is on the device, and the router told."""
        if block.parent is None:
            return True
        before = self._reusable.get(block.parent)
        return before is not None and before.tier == Tier.DEVICE and block.parent not in before_parent

    def _tier_as_published(self, key: int) -> bool:
        block, published = self._reusable.get(key), self._published.get(key)
        return block is not None and published is not None and block.tier == published.tier

    def _goes(self, key: int, before_parent: Mapping[int, None]) -> bool:
        """Whether to publish the removal of a block that was touched."""
        if key in before_parent:
            # It left the device and is back, but what precedes it is not: a router will forget it with that.
            return self._tier_as_published(key)
        return key in self._published and not self._tier_as_published(key)

    def _told_again(self) -> Iterator[KvEvent]:
        again, self._again = self._again[:AGAIN_BLOCKS], self._again[AGAIN_BLOCKS:]
        # What has changed is told as a change.
        told = [
            (key, self._published[key])
            for key in again
            if key in self._published and (key not in self._changed or self._tier_as_published(key))
        ]
        yield from _stored(told)
        # Of what is stored twice, Dynamo keeps the first removal to itself.
        for tier, those in groupby(told, lambda each: each[1].tier):
            yield RemovedEvent(tuple(key for key, _ in those)[::-1], tier)

    def _mark(self, block_hash: int) -> None:
        # Moved to the end, so that events keep the order of the last changes. Also if it is as published: it may have
        # left the device and come back.
        self._changed.pop(block_hash, None)
        if block_hash in self._reusable or block_hash in self._published:
            self._changed[block_hash] = None


def _parents_first(blocks: Mapping[int, ReusableBlock]) -> Iterator[tuple[int, ReusableBlock]]:
    """Blocks in their order, but none before what precedes it in its prefix."""
    waiting = dict(blocks)
    for key in blocks:
        path: list[int] = []
        at: int | None = key
        while at is not None and at in waiting:
            path.append(at)
            at = waiting[at].parent
        for each in reversed(path):
            yield each, waiting.pop(each)


def _continues(before: tuple[int, ReusableBlock], block: ReusableBlock) -> bool:
    """Whether a block can be in one event with the one before it."""
    key, last = before
    return block.parent == key and (last.salt, last.lora, last.tier) == (block.salt, block.lora, block.tier)


def _stored(blocks: Iterable[tuple[int, ReusableBlock]]) -> Iterator[StoredEvent]:
    """Events that store blocks where they say, parents first."""
    chain: list[tuple[int, ReusableBlock]] = []
    for each in blocks:
        if chain and (len(chain) == MAX_BLOCKS_PER_EVENT or not _continues(chain[-1], each[1])):
            yield _stored_chain(chain)
            chain.clear()
        chain.append(each)
    if chain:
        yield _stored_chain(chain)


def _stored_chain(chain: Sequence[tuple[int, ReusableBlock]]) -> StoredEvent:
    return StoredEvent(tuple(key for key, _ in chain), tuple(block for _, block in chain), chain[0][1].tier)


def _removals(blocks: Iterable[tuple[int, ReusableBlock]]) -> Iterator[KvEvent]:
    """Events that remove blocks from where they say, whatever of them a router knows."""
    for tier, those in groupby(blocks, lambda each: each[1].tier):
        gone = list(those)
        for first in range(0, len(gone), MAX_BLOCKS_PER_EVENT):
            part = gone[first : first + MAX_BLOCKS_PER_EVENT]
            removed = RemovedEvent(tuple(key for key, _ in part), tier)
            if tier != Tier.DEVICE:
                yield from _stored(reversed(part))
                yield removed
            yield removed


def signed(block_hash: int) -> int:
    """An unsigned 64-bit hash as the signed number of the same bits, which is what Dynamo takes."""
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash
