"""What Dynamo's router makes of KV events, without Dynamo."""

from __future__ import annotations

from collections import Counter
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
    """Keeps what it is told, as Dynamo does between a worker and a router.

    At the worker, Dynamo counts what is stored twice, and passes on the last removal alone. The router ends
    a removal at the first block that it does not know. On the device it keeps a tree: it refuses children of unknown
    parents, and forgets them with their parents.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, set[Tier]] = {}
        self.parents: dict[int, int | None] = {}
        self.refused: list[int] = []
        self.unknown: list[int] = []
        self._counts: Counter[tuple[int, Tier]] = Counter()

    def forget_lower_tiers(self) -> None:
        """As by a dump of the worker's tree, which Dynamo makes where more events are missing than it keeps."""
        for block_hash, tiers in [*self.blocks.items()]:
            tiers &= {Tier.DEVICE}
            if not tiers:
                del self.blocks[block_hash]

    def take(self, events: Sequence[KvEvent]) -> None:
        for event in events:
            if isinstance(event, ClearedEvent):
                self.blocks.clear()
                self._counts.clear()
            elif isinstance(event, RemovedEvent):
                keys = [(block_hash, event.tier) for block_hash in event.hashes]
                self._counts.subtract(keys)
                assert all(self._counts[key] >= 0 for key in keys), "it was removed more often than stored"
                self._remove([key for key in keys if not self._counts[key]])
            else:
                self._store(event)

    def _store(self, event: StoredEvent) -> None:
        parent = event.blocks[0].parent
        for block_hash, block in zip(event.hashes, event.blocks, strict=True):
            assert block.parent == parent, "an event is one chain"
            assert block.tier == event.tier
            self._counts[block_hash, event.tier] += 1
            if event.tier == Tier.DEVICE and parent is not None and not self._on_device(parent):
                self.refused.append(block_hash)
                return
            self.blocks.setdefault(block_hash, set()).add(event.tier)
            self.parents[block_hash] = parent
            parent = block_hash

    def _remove(self, keys: Sequence[tuple[int, Tier]]) -> None:
        for block_hash, tier in keys:
            if tier not in self.blocks.get(block_hash, ()):
                self.unknown.append(block_hash)
                return
            if tier == Tier.DEVICE:
                orphans = [
                    each for each in self.blocks if self.parents[each] == block_hash and self._on_device(each)
                ]
                assert not orphans, "a parent was removed before its child"
            self.blocks[block_hash].remove(tier)
            if not self.blocks[block_hash]:
                del self.blocks[block_hash]

    def _on_device(self, block_hash: int) -> bool:
        return Tier.DEVICE in self.blocks.get(block_hash, ())
