"""What kind of cache a group of layers needs, and how much memory it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WindowSpec:
    """One window of one rank: layers that share a cache policy. ``windows.kinds`` makes the window of it.

    Attributes:
        name: for messages.
        kind: ``full`` attends to everything before, ``sliding`` to the last ``span`` tokens, ``recurrent``
            resumes from a snapshot.
        blocks: blocks on the device.
        host_blocks: blocks in host memory.
        disk_blocks: blocks on disk.
        span: sliding windows: how many tokens before an endpoint are needed to resume there.
        interval: recurrent windows: tokens between snapshots, a multiple of the block size; None for no
            snapshots.
        max_snapshots: recurrent windows: most snapshots one request takes, the latest ones; None for all.
        wave: sliding windows: blocks that all chunks of one wave touch at most. A request then reserves what it holds
            between two waves, its window, and so many blocks are set aside for the wave that runs; None to reserve
            all blocks of a prompt.
        keys_only: whether no layer keeps anything in it, so that requests have no table: it is there for its keys.
    """

    name: str
    kind: str
    blocks: int
    host_blocks: int = 0
    disk_blocks: int = 0
    span: int = 0
    interval: int | None = None
    max_snapshots: int | None = None
    wave: int | None = None
    keys_only: bool = False
