"""What a rank's cache answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from wavepp_worker.cache.moves import Copy, Move, Tier

Holds = Literal["nothing", "lease", "escrow", "committed", "sequence"]


class StoredBlock(NamedTuple):
    """A block that became reusable on this rank."""

    key: bytes
    parent: bytes | None
    tier: Tier = Tier.DEVICE


class CacheDelta(NamedTuple):
    """What changed of a window's reusable blocks; net, so a block that came and went is in none of it.

    Attributes:
        stored: blocks that became reusable, parents first.
        removed: keys of blocks that stopped being so, leaves first.
        moved: keys of blocks that were and are reusable, and on which tier they are now.
    """

    stored: list[StoredBlock]
    removed: list[bytes]
    moved: list[tuple[bytes, Tier]]


@dataclass(frozen=True)
class CacheUse:
    """Device blocks of one window at one instant; ``free + reusable + held == capacity``.

    Attributes:
        capacity: blocks there are.
        free: of those, without content.
        reusable: of those, attached and held by nobody.
        held: of those, held by leases and sequences.
        escrowed: blocks reserved out of ``free`` and ``reusable``.
    """

    capacity: int
    free: int
    reusable: int
    held: int
    escrowed: int


@dataclass(frozen=True)
class TierFigures:
    """One tier of one window: its blocks at one instant, and what became of them since the start.

    Attributes:
        capacity: blocks it has room for.
        used: of those, with content or held by requests.
        offloaded: blocks that came down to this tier.
        onboarded: blocks that were copied from here up to the device.
        evicted: blocks that lost their content here, as others needed the room.
        lost: blocks that were forgotten here, as their bytes, or those of a block before them, are damaged.
        off: whether the tier failed and is not used any more.
    """

    capacity: int
    used: int
    offloaded: int = 0
    onboarded: int = 0
    evicted: int = 0
    lost: int = 0
    off: bool = False


class ClearedCache(NamedTuple):
    """What was forgotten at once, and what is left.

    Attributes:
        forgotten: blocks of window 0 on the device, in host memory and on disk.
        held: blocks of window 0 that requests hold, and that can still be reused.
        on_disk: all that is left on disk, of all windows.
    """

    forgotten: tuple[int, int, int]
    held: int
    on_disk: tuple[Copy, ...]


@dataclass(frozen=True)
class Holding:
    """What one request holds of the first window.

    Attributes:
        state: how far it is.
        endpoint: tokens that it reuses, or will.
        blocks: that it holds, leased and its own.
        reserved: device blocks in its escrow.
        writer: the request whose blocks it waits for; empty for none.
        readers: how many wait for its own.
    """

    state: Holds
    endpoint: int
    blocks: int
    reserved: int
    writer: str
    readers: int


@dataclass(frozen=True)
class EscrowSums:
    """All escrows of the first window, see ``EscrowLedger``."""

    reserved: int
    promised: int
    destinations: int


class Standing(NamedTuple):
    """How much of a prompt a rank has now.

    Attributes:
        present: tokens that can be reused.
        held: of those, the first ones, which some request holds: reusing them takes no room.
    """

    present: int
    held: int


@dataclass(frozen=True)
class Prepared:
    """How far a preparation got.

    Attributes:
        endpoint: tokens the lease reaches.
        committed: whether the room after it is committed.
    """

    endpoint: int
    committed: bool


@dataclass(frozen=True)
class Materialised:
    """The blocks of a request, per window.

    Attributes:
        tables: device block of each logical block; empty for recurrent windows, and for those of keys only. Of a
            sliding one -1 left of it, and for what is yet to be computed: see ``Begun``.
        moves: copies to make, in order, before anything else touches the blocks.
        resume: recurrent windows: device block of the snapshot to resume from, None to start from nothing.
        states: recurrent windows: device block of the working state; None for others.
    """

    tables: tuple[list[int], ...]
    moves: tuple[Move, ...]
    resume: tuple[int | None, ...]
    states: tuple[int | None, ...]


@dataclass(frozen=True)
class Begun:
    """What a chunk that is about to be computed leaves behind, per window.

    Attributes:
        snapshots: recurrent windows: device block to copy the state to at each token position.
        taken: sliding windows: the block from which on the request has new places, and these.
        moves: copies to make, in order, before anything else touches the blocks.
    """

    snapshots: tuple[dict[int, int], ...]
    moves: tuple[Move, ...]
    taken: tuple[tuple[int, list[int]], ...] = ()
