"""What one request holds of one window."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavepp_worker.cache.node import Node


@dataclass
class Share:
    """What one request holds of one window, from its lease to its release.

    Attributes:
        first: index in the prefix of ``pinned[0]``.
        pinned: blocks held in the tree: the leased ones, later also those the request published.
        table: device block of each logical block, -1 left of a sliding window; empty in recurrent windows.
        private: device blocks that only this request has.
        published: blocks of the prefix that have been offered to the tree.
        end: blocks after which the request resumed.
        total: blocks of its whole prompt.
        taken: blocks of the prompt that have a place on the device, or had one.
        borrowed: of those that it took, blocks set aside for the wave that runs.
        wanted: blocks of a sliding window that others are known to come back to.
        passed: blocks of the prefix that a sliding window has left behind and let go of.
        snapshots: device block of each snapshot not published yet, by token position.
    """

    first: int
    pinned: list[Node]
    table: list[int] = field(default_factory=list)
    private: set[int] = field(default_factory=set)
    published: int = 0
    passed: int = 0
    end: int = 0
    total: int = 0
    taken: int = 0
    borrowed: int = 0
    wanted: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """The device blocks of a request in one window; see ``Materialised``."""

    table: list[int] = field(default_factory=list)
    resume: int | None = None
    state: int | None = None


@dataclass(frozen=True)
class Taken:
    """What a chunk that is about to be computed takes in one window; see ``Begun``."""

    snapshots: dict[int, int] = field(default_factory=dict)
    first: int = 0
    blocks: list[int] = field(default_factory=list)
