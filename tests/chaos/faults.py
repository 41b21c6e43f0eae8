"""What can be done to a graph, and to whom."""

from __future__ import annotations

from enum import Enum

import msgspec


class Role(str, Enum):
    """A process of a graph, by what it does."""

    RANK = "rank"
    PREFILL = "prefill worker"
    DECODE = "decode worker"
    FRONTEND = "frontend"
    BROKER = "event broker"
    QUEUE = "queue server"


class Kind(str, Enum):
    """A fault. Those that last are undone after their seconds."""

    KILL = "SIGKILL"
    TERMINATE = "SIGTERM"
    STOP = "SIGSTOP"
    DESCRIPTORS = "descriptors run out"
    MEMORY = "memory runs out"
    FLOOD = "flood of idle connections"
    DISK_FLIP = "bytes flipped on disk"
    DISK_TRUNCATE = "disk file truncated"
    DISK_FULL = "disk full"


LASTING = frozenset({Kind.STOP, Kind.DESCRIPTORS, Kind.MEMORY, Kind.FLOOD, Kind.DISK_FULL})

_ALWAYS = tuple(role for role in Role if role is not Role.QUEUE)

EVERYWHERE: tuple[tuple[Kind, Role], ...] = (
    *((kind, role) for kind in (Kind.KILL, Kind.STOP) for role in _ALWAYS),
    *((Kind.TERMINATE, role) for role in _ALWAYS),
    *((Kind.DESCRIPTORS, role) for role in (Role.RANK, Role.PREFILL, Role.DECODE, Role.FRONTEND)),
    *((Kind.FLOOD, role) for role in _ALWAYS),
    (Kind.MEMORY, Role.RANK),
)
"""What is done to any graph."""

TO_DISKS: tuple[tuple[Kind, Role], ...] = (
    (Kind.DISK_FLIP, Role.RANK),
    (Kind.DISK_TRUNCATE, Role.RANK),
    (Kind.DISK_FULL, Role.RANK),
)
"""What is done to a graph with a disk tier as well."""


TO_QUEUES: tuple[tuple[Kind, Role], ...] = (
    (Kind.KILL, Role.QUEUE),
    (Kind.KILL, Role.QUEUE),
    (Kind.STOP, Role.QUEUE),
    (Kind.TERMINATE, Role.QUEUE),
    (Kind.FLOOD, Role.QUEUE),
)
"""What is done to a graph whose prompts go through a queue as well."""


class Fault(msgspec.Struct, frozen=True):
    """One fault of a schedule.

    Attributes:
        at: seconds after the load began.
        kind: what happens.
        role: to whom.
        pick: which of the processes of that role, as a fraction of their number, in [0, 1).
        seconds: how long it lasts; 0 for what happens at once.
    """

    at: float
    kind: Kind
    role: Role
    pick: float
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.kind.value}, {self.role.value}{lasting}"


class Injected(msgspec.Struct, frozen=True):
    """What became of a fault.

    Attributes:
        fault: as scheduled.
        began: seconds after the load began.
        ended: when it was undone, or ``began``.
        victim: whom it hit; empty if nobody was there.
    """

    fault: Fault
    began: float
    ended: float
    victim: str
