"""KV events: what Dynamo's router is to be told of the blocks every rank of this worker can reuse. Pure.

There is no queue that could overflow and lose an event. What waits is the set of blocks whose state differs
from what was last published, so changes to one block replace each other, and what waits is never more than
the pool holds plus what the router believes it holds. However far the publisher falls behind, what it
publishes next brings the router to the present.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavepp_worker import token_ids
from wavepp_worker.runtime.protocol.requests import IndexDelta

MAX_BLOCKS_PER_EVENT = 1024
"""Blocks in one event, so that a long prompt is not one huge message."""


@dataclass(frozen=True)
class ReusableBlock:
    """One block that every rank can reuse: its place in the tree and what it is of; ``tokens`` are packed."""

    parent: int | None
    tokens: bytes
    salt: str
    lora: str


@dataclass(frozen=True)
class StoredEvent:
    """Publish ``blocks``, a parent-to-child chain."""

    hashes: tuple[int, ...]
    blocks: tuple[ReusableBlock, ...]


@dataclass(frozen=True)
class RemovedEvent:
    """Publish that ``hashes``, leaves first, can no longer be reused."""

    hashes: tuple[int, ...]


class PendingEvents:
    """The difference between what is reusable and what was published. Not thread-safe."""

    def __init__(self, block_size: int) -> None:
        """Start with nothing reusable and nothing published; ``block`` is in tokens."""
        self._block = block_size
        self._reusable: dict[int, ReusableBlock] = {}
        self._published: set[int] = set()
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._changed)

    def apply(self, delta: IndexDelta) -> None:
        """Take in one change of what is reusable."""
        parent = delta.parent
        for position, block_hash in enumerate(delta.stored):
            tokens = token_ids.part(delta.tokens, position * self._block, (position + 1) * self._block)
            self._reusable[block_hash] = ReusableBlock(parent, tokens, delta.salt, delta.lora)
            self._mark(block_hash)
            parent = block_hash
        for block_hash in delta.removed:
            self._reusable.pop(block_hash, None)
            self._mark(block_hash)

    def take(self) -> list[StoredEvent | RemovedEvent]:
        """The events that publish everything pending; counts it as published."""
        events: list[StoredEvent | RemovedEvent] = []
        chain: list[int] = []
        gone: list[int] = []

        def flush() -> None:
            if chain:
                events.append(
                    StoredEvent(tuple(chain), tuple(self._reusable[block_hash] for block_hash in chain))
                )
            if gone:
                events.append(RemovedEvent(tuple(gone)))
            chain.clear()
            gone.clear()

        for block_hash in self._changed:
            block = self._reusable.get(block_hash)
            if block is None:
                if chain or len(gone) == MAX_BLOCKS_PER_EVENT:
                    flush()
                gone.append(block_hash)
                self._published.discard(block_hash)
                continue
            continues = bool(chain) and block.parent == chain[-1] and self._alike(chain[-1], block)
            if gone or not continues or len(chain) == MAX_BLOCKS_PER_EVENT:
                flush()
            chain.append(block_hash)
            self._published.add(block_hash)
        flush()
        self._changed.clear()
        return events

    def _mark(self, block_hash: int) -> None:
        # Moved to the end, so that events keep the order of the last changes: parents come before their
        # children when stored, and after them when removed.
        self._changed.pop(block_hash, None)
        if (block_hash in self._reusable) != (block_hash in self._published):
            self._changed[block_hash] = None

    def _alike(self, before: int, block: ReusableBlock) -> bool:
        last = self._reusable[before]
        return (last.salt, last.lora) == (block.salt, block.lora)


def signed(block_hash: int) -> int:
    """An unsigned 64-bit hash as the signed number of the same bits, which is what Dynamo takes."""
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash
