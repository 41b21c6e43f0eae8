"""The block slots of one tier: which are free."""

from __future__ import annotations

from collections.abc import Iterable

from wavepp_worker.errors import AuditError


class BlockPool:
    """Slots ``0 … capacity-1``, each free or handed out once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._taken = bytearray(capacity)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` free blocks. The caller has checked ``free``; ValueError otherwise."""
        if count > len(self._free):
            raise ValueError(f"asked for {count} blocks, {len(self._free)} of {self.capacity} are free")
        if count < 1:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        for block in taken:
            self._taken[block] = 1
        return taken

    def take_these(self, blocks: Iterable[int]) -> None:
        """Take these very blocks, all of them free; ValueError otherwise. Costs O(capacity)."""
        for block in blocks:
            if not 0 <= block < self.capacity or self._taken[block]:
                raise ValueError(f"block {block} of {self.capacity} cannot be taken; it is not free")
            self._taken[block] = 1
        self._free = [block for block in self._free if not self._taken[block]]

    def drop_owner(self, block: int) -> None:
        """Its owner gives a block back."""
        if not self._taken[block]:
            raise ValueError(f"block {block} is free already")
        self._taken[block] = 0
        self._free.append(block)

    def in_use(self) -> list[int]:
        """Every block that is handed out, ascending. Costs O(capacity)."""
        return [block for block in range(self.capacity) if self._taken[block]]

    def check(self) -> None:
        """Raise AuditError unless the free list is exactly the blocks that are not handed out."""
        untaken = self.capacity - sum(self._taken)
        if len(self._free) != untaken or any(self._taken[block] for block in self._free):
            raise AuditError(f"the free list has {len(self._free)} entries, {untaken} blocks are not in use")
