"""The physical blocks of one rank: which are free, and how many owners each other one has."""

from __future__ import annotations

from wavepp_worker.errors import AuditError


class BlockPool:
    """Reference-counted block ids ``0 … capacity-1``. A block with no owner is free."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._owners = [0] * capacity

    @property
    def free(self) -> int:
        return len(self._free)

    def owners(self, block: int) -> int:
        return self._owners[block]

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` free blocks, each with one owner. The caller has checked ``free``."""
        if count > len(self._free):
            raise ValueError(f"asked for {count} blocks, {len(self._free)} of {self.capacity} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def add_owner(self, block: int) -> None:
        if self._owners[block] == 0:
            raise ValueError(f"block {block} is free; only a block in use can get another owner")
        self._owners[block] += 1

    def drop_owner(self, block: int) -> None:
        if self._owners[block] == 0:
            raise ValueError(f"block {block} is free already")
        self._owners[block] -= 1
        if self._owners[block] == 0:
            self._free.append(block)

    def check(self) -> None:
        """Raise AuditError unless the free list is exactly the blocks without owners."""
        unowned = {block for block, owners in enumerate(self._owners) if owners == 0}
        if len(self._free) != len(unowned) or set(self._free) != unowned:
            raise AuditError(
                f"the free list has {len(self._free)} entries, {len(unowned)} blocks have no owner"
            )
