"""From the ranks' cache changes to the worker's: stored on *all*, removed from the *first*.

Promise 15 of docs/design.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavepp_worker import token_ids
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.protocol.events import CacheChanges, StoredRun
from wavepp_worker.runtime.protocol.requests import IndexDelta


@dataclass
class _Block:
    ranks: set[int]
    parent: int | None = None
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""


class IndexFeed:
    """Counts, per block, the ranks that can reuse it. Pure: changes in, deltas out."""

    def __init__(self, ranks: int, block_size: int) -> None:
        self._ranks = ranks
        self._block_size = block_size
        self._blocks: dict[int, _Block] = {}

    def apply(self, changes: CacheChanges) -> list[IndexDelta]:
        """The deltas that one rank's changes amount to, in an order a router can apply."""
        deltas = []
        removed = tuple(key for key in changes.removed if self._remove(key, changes.rank))
        if removed:
            deltas.append(IndexDelta(removed=removed))
        for run in changes.stored:
            deltas.extend(self._store(run, changes.rank))
        return deltas

    def stored(self) -> int:
        """Blocks that every rank can reuse now."""
        return sum(len(block.ranks) == self._ranks for block in self._blocks.values())

    def _remove(self, key: int, rank: int) -> bool:
        block = self._blocks.get(key)
        if block is None or rank not in block.ranks:
            raise AuditError(f"rank {rank} removed block {key:#x}, which it had not stored")
        was_everywhere = len(block.ranks) == self._ranks
        block.ranks.discard(rank)
        if not block.ranks:
            del self._blocks[key]
        return was_everywhere

    def _store(self, run: StoredRun, rank: int) -> list[IndexDelta]:
        complete: list[int] = []
        parent = run.parent
        for index, key in enumerate(run.keys):
            block = self._blocks.setdefault(key, _Block(set()))
            block.ranks.add(rank)
            block.parent = parent
            if run.tokens:
                block.salt, block.lora = run.salt, run.lora
                block.tokens = token_ids.part(
                    run.tokens, index * self._block_size, (index + 1) * self._block_size
                )
            if len(block.ranks) == self._ranks:
                complete.append(key)
            parent = key
        if not complete:
            return []
        blocks = [self._blocks[key] for key in complete]
        return [
            IndexDelta(
                stored=tuple(complete),
                parent=blocks[0].parent,
                tokens=b"".join(block.tokens for block in blocks),
                salt=blocks[0].salt,
                lora=blocks[0].lora,
            )
        ]
