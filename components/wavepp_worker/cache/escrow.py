"""Room reserved in one window for requests that have not allocated it yet (paper, "Capacity Escrow").

The paper's escrow holds references to the victims it will evict. Here it holds counts. Every block that
nobody pins can be reclaimed and all of them are worth one unit of room, so naming victims early buys nothing:
with counts a reservation is O(1) under the mutex, a victim that another request pins is substituted by
arithmetic, the allocator picks what is least recently used when the blocks are really taken instead of when
they were reserved, and no victim has to be exchanged because it turned from a leaf into an interior block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wavepp_worker.errors import AuditError


class Asked(NamedTuple):
    """Holds the room for what others asked a request to leave behind, apart from what it needs itself."""

    request_id: str


Holder = str | Asked
"""Whose an escrow is: a request's, for itself or for others."""


@dataclass(frozen=True)
class Escrow:
    """What one holder has reserved in one window.

    Attributes:
        blocks: device blocks, free or reclaimable, whichever it turns out to be.
        destinations: blocks below the device for victims that shall keep their content; victims beyond lose
            it.
        committed: whether ``blocks`` cannot be taken away any more by pins on reusable blocks.
    """

    blocks: int
    destinations: int
    committed: bool = False


class EscrowLedger:
    """The escrows of one window. Not thread-safe.

    Attributes:
        reserved: sum of all escrows' blocks.
        promised: of those, committed.
        destinations: sum of all escrows' destinations.
    """

    def __init__(self) -> None:
        self._escrows: dict[Holder, Escrow] = {}
        self.reserved = 0
        self.promised = 0
        self.destinations = 0

    def __len__(self) -> int:
        return len(self._escrows)

    def get(self, holder: Holder) -> Escrow:
        """The holder's escrow; one of no blocks if it has none."""
        return self._escrows.get(holder, _NOTHING)

    def put(self, holder: Holder, escrow: Escrow) -> None:
        """Replace the holder's escrow."""
        self.drop(holder)
        self._escrows[holder] = escrow
        self._count(escrow, 1)

    def drop(self, holder: Holder) -> None:
        """Forget the holder's escrow, if it has one."""
        escrow = self._escrows.pop(holder, None)
        if escrow is not None:
            self._count(escrow, -1)

    def shrink_destinations(self, limit: int) -> None:
        """Make do with ``limit`` destinations; the latest escrows lose theirs first. Only content is at stake."""
        for holder in reversed(self._escrows):
            excess = self.destinations - limit
            if excess <= 0:
                return
            escrow = self._escrows[holder]
            kept = max(0, escrow.destinations - excess)
            self.destinations -= escrow.destinations - kept
            self._escrows[holder] = Escrow(escrow.blocks, kept, escrow.committed)

    def check(self) -> None:
        """Raise AuditError unless the sums are those of the escrows."""
        escrows = self._escrows.values()
        sums = (
            sum(escrow.blocks for escrow in escrows),
            sum(escrow.blocks for escrow in escrows if escrow.committed),
            sum(escrow.destinations for escrow in escrows),
        )
        if sums != (self.reserved, self.promised, self.destinations):
            raise AuditError(
                f"escrows add up to {sums} blocks, committed blocks and destinations, the ledger says "
                f"{(self.reserved, self.promised, self.destinations)}"
            )

    def _count(self, escrow: Escrow, sign: int) -> None:
        self.reserved += sign * escrow.blocks
        self.promised += sign * escrow.blocks * escrow.committed
        self.destinations += sign * escrow.destinations


_NOTHING = Escrow(0, 0)
