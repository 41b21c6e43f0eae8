"""From the ranks' cache changes to the worker's: stored on *all*, removed from the *first*.

Promise 15 of docs/design.md. Blocks have their keys in here. A router is told hashes instead, which are equal in all
replicas of a model: it believes that equal prefixes have equal hashes on every worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys, prefix_root
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.protocol.events import CacheChanges, StoredRun
from wavepp_worker.runtime.protocol.requests import IndexDelta

HASH_BYTES = 8


@dataclass
class _Block:
    """``digest``: of the whole prefix that ends with it, once all ranks have it."""

    ranks: set[int]
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""
    digest: bytes = b""

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

    def apply(self, changes: CacheChanges) -> list[IndexDelta]:
        """The deltas that one rank's changes amount to, in an order a router can apply."""
        deltas = []
        removed = [self._remove(key, changes.rank) for key in BlockKeys(changes.removed)]
        told = tuple(block.hash for block in removed if block is not None)
        if told:
            deltas.append(IndexDelta(removed=told))
        for run in changes.stored:
            deltas.extend(self._store(run, changes.rank))
        return deltas

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from its first on, every rank can reuse now; from any thread.

        Args:
            keys: of its full blocks, in order.
        """
        for count, key in enumerate(keys):
            block = self._blocks.get(key)
            if block is None or len(block.ranks) < self._ranks:
                return count
        return len(keys)

    def stored(self) -> int:
        """Blocks that every rank can reuse now."""
        return sum(len(block.ranks) == self._ranks for block in self._blocks.values())

    def _remove(self, key: bytes, rank: int) -> _Block | None:
        """The block if all ranks had it until now."""
        block = self._blocks.get(key)
        if block is None or rank not in block.ranks:
            raise AuditError(f"rank {rank} removed block {key.hex()}, which it had not stored")
        was_everywhere = len(block.ranks) == self._ranks
        block.ranks.discard(rank)
        if not block.ranks:
            del self._blocks[key]
        return block if was_everywhere else None

    def _store(self, run: StoredRun, rank: int) -> list[IndexDelta]:
        complete: list[_Block] = []
        parent, size = run.parent, self._block_size
        first_parent: bytes | None = None
        for index, key in enumerate(BlockKeys(run.keys)):
            block = self._blocks.setdefault(key, _Block(set()))
            block.ranks.add(rank)
            if run.tokens:
                block.tokens = token_ids.part(run.tokens, index * size, (index + 1) * size)
                block.salt, block.lora = run.salt, run.lora
            if len(block.ranks) == self._ranks:
                first_parent = parent if not complete else first_parent
                block.digest = block.digest or self._digest(block, parent)
                complete.append(block)
            parent = key
        if not complete:
            return []
        return [
            IndexDelta(
                stored=tuple(block.hash for block in complete),
                parent=self._blocks[first_parent].hash if first_parent is not None else None,
                tokens=b"".join(block.tokens for block in complete),
                salt=complete[0].salt,
                lora=complete[0].lora,
            )
        ]

    def _digest(self, block: _Block, parent: bytes | None) -> bytes:
        """Who has a block has the one before it, so that one is complete as well."""
        before = (
            self._blocks[parent].digest
            if parent is not None
            else prefix_root(self._model_id, block.salt, block.lora)
        )
        return hashlib.sha256(before + block.tokens).digest()
