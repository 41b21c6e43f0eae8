"""What the bookkeeping asks of whoever owns the bytes: copies of blocks between the tiers of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Tier(IntEnum):
    """Where a block's bytes are, fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True)
class Copy:
    """One copy of a block: in slot ``slot`` of a tier of a window, under its key."""

    window: int
    key: bytes
    tier: Tier
    slot: int


@dataclass(frozen=True)
class Move:
    """Copy one block's bytes from ``source`` to ``target``, both ``(tier, slot)`` of one window.

    Moves come in ordered lists: a later one may read what an earlier one wrote, or overwrite what it read.

    Attributes:
        window: index of the window whose block it is.
        key: key of the block.
        parent: key of the block before it, None for a first block and in windows without parents.
    """

    window: int
    key: bytes
    parent: bytes | None
    source: tuple[Tier, int]
    target: tuple[Tier, int]
