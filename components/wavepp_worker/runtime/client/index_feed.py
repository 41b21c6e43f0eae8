"""From the ranks' cache changes to the worker's: stored on *all*, removed from the *first*.

Promise 15 of docs/design.md. Blocks have their keys in here. A router is told hashes instead, which are equal in all
replicas of a model: it believes that equal prefixes have equal hashes on every worker.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter

from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys, prefix_root
from wavepp_worker.cache.moves import Tier
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.protocol.events import CacheChanges, StoredRun
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

HASH_BYTES = 8


@dataclass
class _Block:
    """One block, and the tier that it is on on each rank that has it.

    ``digest`` is of the whole prefix that ends with it, once all ranks have it.
    """

    tiers: dict[int, Tier]
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""
    digest: bytes = b""

    @property
    def tier(self) -> Tier:
        """The slowest of any rank: all of them have to have it on the device for it to be there."""
        return max(self.tiers.values())

    @property
    def hash(self) -> int:
        return int.from_bytes(self.digest[:HASH_BYTES], "little")


class IndexFeed:
    """Counts, per block, the ranks that can reuse it. Pure: changes in, deltas out."""

    def __init__(self, ranks: int, block_size: int, model_id: str) -> None:
        self._ranks = ranks
        self._block_size = block_size
        self._model_id = model_id
        self._blocks: dict[bytes, _Block] = {}
        self._of_rank: Counter[int] = Counter()
        self._of_all = 0

    def apply(self, changes: CacheChanges) -> list[IndexDelta]:
        """The deltas that one rank's changes amount to, in an order a router can apply."""
        deltas = []
        removed = [self._remove(key, changes.rank) for key in BlockKeys(changes.removed)]
        told = tuple(block.hash for block in removed if block is not None)
        if told:
            deltas.append(IndexDelta(removed=told))
        for run in changes.stored:
            deltas.extend(self._store(run, changes.rank))
        for blocks in changes.moved:
            deltas.extend(self._move(BlockKeys(blocks.keys), changes.rank, blocks.tier))
        return deltas

    def _move(self, keys: Sequence[bytes], rank: int, tier: Tier) -> Iterator[IndexDelta]:
        """Blocks of one rank are on another tier; a router is told where that makes a difference."""
        told: list[tuple[int, Tier]] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or rank not in block.tiers:
                raise AuditError(f"rank {rank} moved block {key.hex()}, which it had not stored")
            before = block.tier
            block.tiers[rank] = tier
            if len(block.tiers) == self._ranks and block.tier != before:
                told.append((block.hash, block.tier))
        for now, those in groupby(told, itemgetter(1)):
            yield IndexDelta(moved=tuple(each for each, _ in those), tier=now)

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from its first on, every rank can reuse now; from any thread.

        Args:
            keys: of its full blocks, in order.
        """
        for count, key in enumerate(keys):
            block = self._blocks.get(key)
            if block is None or len(block.tiers) < self._ranks:
                return count
        return len(keys)

    def stored(self, rank: int | None = None) -> int:
        """Blocks that one rank can reuse now, or every rank; from any thread."""
        return self._of_all if rank is None else self._of_rank[rank]

    def _remove(self, key: bytes, rank: int) -> _Block | None:
        """The block if all ranks had it until now."""
        block = self._blocks.get(key)
        if block is None or rank not in block.tiers:
            raise AuditError(f"rank {rank} removed block {key.hex()}, which it had not stored")
        was_everywhere = len(block.tiers) == self._ranks
        del block.tiers[rank]
        self._of_rank[rank] -= 1
        self._of_all -= was_everywhere
        if not block.tiers:
            del self._blocks[key]
        return block if was_everywhere else None

    def _store(self, run: StoredRun, rank: int) -> list[IndexDelta]:
        complete: list[_Block] = []
        parent, size = run.parent, self._block_size
        first_parent: bytes | None = None
        for index, key in enumerate(BlockKeys(run.keys)):
            block = self._blocks.setdefault(key, _Block({}))
            before = len(block.tiers)
            block.tiers[rank] = Tier.DEVICE
            self._of_rank[rank] += len(block.tiers) - before
            self._of_all += before < len(block.tiers) == self._ranks
            if run.tokens:
                block.tokens = token_ids.part(run.tokens, index * size, (index + 1) * size)
                block.salt, block.lora = run.salt, run.lora
            if len(block.tiers) == self._ranks:
                first_parent = parent if not complete else first_parent
                block.digest = block.digest or self._digest(block, parent)
                complete.append(block)
            parent = key
        if not complete:
            return []
        deltas = []
        parent_hash = self._blocks[first_parent].hash if first_parent is not None else None
        for tier, those in groupby(complete, attrgetter("tier")):
            blocks = list(those)
            deltas.append(
                IndexDelta(
                    stored=tuple(block.hash for block in blocks),
                    parent=parent_hash,
                    tokens=b"".join(block.tokens for block in blocks),
                    salt=blocks[0].salt,
                    lora=blocks[0].lora,
                    tier=tier,
                )
            )
            parent_hash = blocks[-1].hash
        return deltas

    def _digest(self, block: _Block, parent: bytes | None) -> bytes:
        """Who has a block has the one before it, so that one is complete as well."""
        before = (
            self._blocks[parent].digest
            if parent is not None
            else prefix_root(self._model_id, block.salt, block.lora)
        )
        return hashlib.sha256(before + block.tokens).digest()
