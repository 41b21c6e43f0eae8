"""What Dynamo's router makes of KV events, without Dynamo."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.dynamo.kv_events import ClearedEvent, KvEvent, RemovedEvent, StoredEvent
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

BLOCK = 2


def stored(*hashes: int, parent: int | None = None, salt: str = "", lora: str = "") -> IndexDelta:
    """The change that ``hashes`` became reusable, a chain from ``parent``; each block's tokens tell its hash."""
    tokens = token_ids.pack([token for block_hash in hashes for token in (block_hash % 1000, 7)])
    return IndexDelta(stored=hashes, parent=parent, tokens=tokens, salt=salt, lora=lora)


class FakeRouter:
    """Keeps what it is told, as Dynamo's does: refuses children of unknown parents, counts what is stored twice."""

    def __init__(self) -> None:
        self.blocks: dict[int, set[Tier]] = {}
        self.parents: dict[int, int | None] = {}
        self.refused: list[int] = []

    def take(self, events: Sequence[KvEvent]) -> None:
        for event in events:
            if isinstance(event, ClearedEvent):
                self.blocks.clear()
            elif isinstance(event, RemovedEvent):
                self._remove(event)
            else:
                self._store(event)

    def _store(self, event: StoredEvent) -> None:
        parent = event.blocks[0].parent
        for block_hash, block in zip(event.hashes, event.blocks, strict=True):
            assert block.parent == parent, "an event is one chain"
            assert block.tier == event.tier
            if parent is not None and parent not in self.blocks:
                self.refused.append(block_hash)
                return
            tiers = self.blocks.setdefault(block_hash, set())
            assert event.tier not in tiers, "it was stored there already, and one removal would not do"
            tiers.add(event.tier)
            self.parents[block_hash] = parent
            parent = block_hash

    def _remove(self, event: RemovedEvent) -> None:
        for block_hash in event.hashes:
            self.blocks[block_hash].remove(event.tier)
            if not self.blocks[block_hash]:
                del self.blocks[block_hash]
                orphans = [each for each in self.blocks if self.parents[each] == block_hash]
                # Below the device, Dynamo keeps no tree.
                assert not orphans or event.tier != Tier.DEVICE, "a parent was removed before its child"
