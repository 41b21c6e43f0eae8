"""Which errors no fault explains, and how long a graph took to answer again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tests.chaos.faults import Injected, Kind, Role
from tests.chaos.judge import TROUBLE, Reply, Verdict

ANYBODY = frozenset(Role)
AFTERMATH_SECONDS = 12.0
"""How long a dead process stays in Dynamo's discovery, and clients are sent to it."""

DRAIN_SECONDS = 31.0
"""How long a process that is told to stop, and takes no requests any more, may still say that it is ready."""


class Health(msgspec.Struct, frozen=True):
    """A moment after the load began.

    Attributes:
        at: seconds.
        down: roles of the processes that do not say then that they are ready.
    """

    at: float
    down: list[Role] = []


def troubled(
    injected: Sequence[Injected], health: Sequence[Health], roles: frozenset[Role] = ANYBODY
) -> list[tuple[float, float]]:
    """When errors are to be expected: in a fault of one of ``roles``, until such a process is back, and just after.

    Returns:
        Begin and end of each stretch, in seconds after the load began; they may overlap.
    """
    spans = [
        (each.began, each.ended + (DRAIN_SECONDS if each.fault.kind is Kind.TERMINATE else 0.0))
        for each in injected
        if each.victim and each.fault.role in roles
    ]
    for before, after in pairwise(health):
        # Who is down now may have been since just after the look before.
        if roles & {*before.down, *after.down}:
            spans.append((before.at, after.at))
    return [(begin, end + AFTERMATH_SECONDS) for begin, end in spans]


def unexplained(
    replies: Sequence[tuple[Reply, Verdict]], injected: Sequence[Injected], health: Sequence[Health]
) -> list[tuple[Reply, Verdict]]:
    """Errors of requests during whose whole life nothing was wrong.

    Only a frontend that is hurt explains a connection that breaks: of everybody else it has to tell.
    """
    anybody = troubled(injected, health)
    frontend = troubled(injected, health, frozenset({Role.FRONTEND}))
    return [
        (reply, verdict)
        for reply, verdict in replies
        if verdict in TROUBLE
        and not any(
            begin <= reply.ended and reply.began <= end
            for begin, end in (frontend if verdict is Verdict.BROKEN else anybody)
        )
    ]


def recovery(injected: Injected, replies: Sequence[tuple[Reply, Verdict]]) -> float | None:
    """Seconds from a fault to the first right answer to a request sent after it; None if there was none."""
    ends = [
        reply.ended
        for reply, verdict in replies
        if verdict is Verdict.RIGHT and reply.began >= injected.began
    ]
    return min(ends) - injected.began if ends else None
