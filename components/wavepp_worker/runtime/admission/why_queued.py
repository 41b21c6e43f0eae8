"""What a request waits for that no round prepares yet. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.protocol.whereabouts import QueuedBecause


def why_queued(
    entry: Waiting, *, ahead: int, places: int, needs: float, room: float, prepared_writer: str
) -> QueuedBecause:
    """The first of what has to happen before a request is prepared.

    Args:
        ahead: requests that are before it in first-come order.
        places: requests that may be prepared now.
        needs: tokens of room that it takes.
        room: tokens that could be reserved for it.
        prepared_writer: a request that is being prepared and computes its prefix; empty if there is none.
    """
    if places <= 0:
        return "places"
    if ahead:
        return "ahead"
    if needs > room:
        return "room"
    if prepared_writer:
        return "writer"
    if entry.candidate is None:
        return "looking up"
    return "other rank" if entry.failed else "round"
