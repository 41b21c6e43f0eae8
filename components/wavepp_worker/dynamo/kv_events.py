"""KV events: tells Dynamo's router which blocks every rank of this worker can reuse.

There is no queue that could overflow and lose an event. What waits is the set of blocks whose state differs
from what was last published, so changes to one block replace each other, and what waits is never more than
the pool holds plus what the router believes it holds. However far the publisher falls behind, what it
publishes next brings the router to the present.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wavepp_worker.runtime.protocol.requests import IndexDelta

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
MOST_BLOCKS = 1024
"""Blocks in one event, so that a long prompt is not one huge message."""


class Publisher(Protocol):
    """What we use of Dynamo's ``KvEventPublisher``."""

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> None: ...

    def publish_removed(self, block_hashes: list[int]) -> None: ...


@dataclass(frozen=True)
class Block:
    """One reusable block: its place in the tree and what it is of; ``tokens`` are little-endian uint32."""

    parent: int | None
    tokens: bytes
    salt: str
    lora: str


@dataclass(frozen=True)
class Stored:
    """Publish ``blocks``, a parent-to-child chain."""

    hashes: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Removed:
    """Publish that ``hashes``, leaves first, can no longer be reused."""

    hashes: tuple[int, ...]


class PendingEvents:
    """The difference between what is reusable and what was published. Pure; not thread-safe."""

    def __init__(self, block: int) -> None:
        self._block_bytes = 4 * block
        self._reusable: dict[int, Block] = {}
        self._published: set[int] = set()
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._changed)

    def apply(self, delta: IndexDelta) -> None:
        """Take in one change of what is reusable."""
        parent = delta.parent
        for position, block_hash in enumerate(delta.stored):
            start = position * self._block_bytes
            tokens = delta.tokens[start : start + self._block_bytes]
            self._reusable[block_hash] = Block(parent, tokens, delta.salt, delta.lora)
            self._mark(block_hash)
            parent = block_hash
        for block_hash in delta.removed:
            self._reusable.pop(block_hash, None)
            self._mark(block_hash)

    def take(self) -> list[Stored | Removed]:
        """The events that publish everything pending; counts it as published."""
        events: list[Stored | Removed] = []
        chain: list[int] = []
        gone: list[int] = []

        def flush() -> None:
            if chain:
                events.append(Stored(tuple(chain), tuple(self._reusable[block_hash] for block_hash in chain)))
            if gone:
                events.append(Removed(tuple(gone)))
            chain.clear()
            gone.clear()

        for block_hash in self._changed:
            block = self._reusable.get(block_hash)
            if block is None:
                if chain or len(gone) == MOST_BLOCKS:
                    flush()
                gone.append(block_hash)
                self._published.discard(block_hash)
                continue
            continues = bool(chain) and block.parent == chain[-1] and self._alike(chain[-1], block)
            if gone or not continues or len(chain) == MOST_BLOCKS:
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

    def _alike(self, before: int, block: Block) -> bool:
        last = self._reusable[before]
        return (last.salt, last.lora) == (block.salt, block.lora)


def signed(block_hash: int) -> int:
    """An unsigned 64-bit hash as the signed number of the same bits, which is what Dynamo takes."""
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash


class KvEvents:
    """Publishes index changes from a thread of its own."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._pending = PendingEvents(block)
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def on_index(self, delta: IndexDelta) -> None:
        """Take in one change; never blocks on the publisher. Any thread, in the order of the changes."""
        with self._wake:
            self._pending.apply(delta)
            self._wake.notify()

    def start(self, publisher: Publisher) -> None:
        """Publish what is pending and all that follows."""
        self._thread = threading.Thread(target=self._run, args=(publisher,), name="kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; idempotent, also if never started."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, publisher: Publisher) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or len(self._pending) > 0)
                if self._stopping:
                    return
                events = self._pending.take()
            for event in events:
                try:
                    self._publish(publisher, event)
                except (OverflowError, TypeError, ValueError, RuntimeError):
                    logger.exception("the router does not learn of %d blocks", len(event.hashes))

    def _publish(self, publisher: Publisher, event: Stored | Removed) -> None:
        hashes = [signed(block_hash) for block_hash in event.hashes]
        if isinstance(event, Removed):
            publisher.publish_removed(hashes)
            return
        first = event.blocks[0]
        tokens = b"".join(block.tokens for block in event.blocks)
        publisher.publish_stored(
            np.frombuffer(tokens, dtype="<u4").tolist(),
            [self._block] * len(hashes),
            hashes,
            None if first.parent is None else signed(first.parent),
            lora_name=first.lora or None,
            cache_salt=first.salt or None,
        )
