"""What Dynamo's router makes of KV events, without Dynamo."""

from __future__ import annotations

from typing import Any

from wavepp_worker import token_ids
from wavepp_worker.dynamo.kv_events import RemovedEvent, StoredEvent, signed
from wavepp_worker.runtime.protocol.requests import IndexDelta

BLOCK = 2


def stored(*hashes: int, parent: int | None = None, salt: str = "", lora: str = "") -> IndexDelta:
    """The change that ``hashes`` became reusable, a chain from ``parent``; each block's tokens tell its hash."""
    tokens = token_ids.pack([token for block_hash in hashes for token in (block_hash % 1000, 7)])
    return IndexDelta(stored=hashes, parent=parent, tokens=tokens, salt=salt, lora=lora)


class FakeRouter:
    """Keeps what it is told, as Dynamo's does: refuses children of unknown parents."""

    def __init__(self) -> None:
        self.blocks: dict[int, int | None] = {}
        self.calls: list[tuple[str, Any]] = []
        self.refused: list[int] = []
        self.busy = False

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        assert len(token_ids) == sum(num_block_tokens)
        assert all(-(2**63) <= value < 2**63 for value in block_hashes)
        self.calls.append(("stored", (token_ids, block_hashes, parent_hash, lora_name, cache_salt)))
        parent = parent_hash
        for block_hash in block_hashes:
            if parent is not None and parent not in self.blocks:
                self.refused.append(block_hash)
                return
            self.blocks[block_hash] = parent
            parent = block_hash

    def publish_removed(self, block_hashes: list[int]) -> None:
        self.calls.append(("removed", block_hashes))
        for block_hash in block_hashes:
            assert block_hash not in self.blocks.values(), "a parent was removed before its child"
            self.blocks.pop(block_hash)

    def take(self, events: list[StoredEvent | RemovedEvent]) -> None:
        for event in events:
            if isinstance(event, RemovedEvent):
                self.publish_removed([signed(value) for value in event.hashes])
            else:
                first = event.blocks[0]
                self.publish_stored(
                    token_ids.unpack(b"".join(block.tokens for block in event.blocks)).tolist(),
                    [BLOCK] * len(event.hashes),
                    [signed(value) for value in event.hashes],
                    None if first.parent is None else signed(first.parent),
                )
