"""What processes and a run hold beyond what they held at first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tests.chaos.slope import slope

SPARE_DESCRIPTORS = 12
SPARE_THREADS = 4
"""How much more a process may hold than at first: pools of threads and connections grow to the load's width."""
WARM_UP_SECONDS = 300.0
"""For so long a new process grows towards the width of the load: what it remembers fills, and so do malloc's arenas."""
LEAST_LIFE_SECONDS = 240.0
"""A process's RSS tells a slope if it lived this long after its warm-up."""


class Held(msgspec.Struct, frozen=True):
    """What a process holds at a moment.

    Attributes:
        at: seconds after the load began.
        pid: its id.
        role: what it is, such as ``rank`` or ``Frontend``.
        descriptors: open files and sockets.
        threads: threads.
        rss: resident bytes.
    """

    at: float
    pid: int
    role: str
    descriptors: int
    threads: int
    rss: int


class Left(msgspec.Struct, frozen=True):
    """What should not be there any more: shared memory that nobody has mapped, processes of the run."""

    shared_memory: list[str] = []
    processes: list[int] = []


def grown(first: Sequence[Held], last: Sequence[Held]) -> list[str]:
    """Sentences about processes that hold more at rest at the end than any of their role did at the beginning."""
    sentences = []
    for held in last:
        before = [each for each in first if each.role == held.role]
        if not before:
            continue
        for what, spare in (("descriptors", SPARE_DESCRIPTORS), ("threads", SPARE_THREADS)):
            most, now = max(getattr(each, what) for each in before), getattr(held, what)
            if now > most + spare:
                sentences.append(f"{held.role} {held.pid} has {now} {what}, at first {most}")
    return sentences


def rss_slopes(samples: Sequence[Held]) -> Mapping[str, list[float]]:
    """Of each role, bytes a second of every process that lived long enough, after its warm-up."""
    lives: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for each in samples:
        lives.setdefault((each.role, each.pid), []).append((each.at, float(each.rss)))
    slopes: dict[str, list[float]] = {}
    for (role, _), points in lives.items():
        warm = [point for point in points if point[0] >= points[0][0] + WARM_UP_SECONDS]
        if warm and warm[-1][0] - warm[0][0] >= LEAST_LIFE_SECONDS:
            slopes.setdefault(role, []).append(slope(warm))
    return slopes


def left_over(before: Left, after: Left) -> list[str]:
    """Sentences about what is there after a run and was not before it."""
    return [
        *(f"shared memory {each}" for each in sorted(set(after.shared_memory) - set(before.shared_memory))),
        *(f"process {each}" for each in sorted(set(after.processes) - set(before.processes))),
    ]
