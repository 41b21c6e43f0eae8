"""What the WAVE and LOOP threads of rank 0 tell each other about lanes."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp_worker.runtime.protocol.commands import Explain


@dataclass(frozen=True)
class RequestsWaiting:
    """WAVE to LOOP on rank 0: requests that are not admitted yet. Nothing to wake up for.

    Attributes:
        tokens: that they will compute, as far as is known.
    """

    requests: int
    tokens: int = 0


NOBODY = RequestsWaiting(0)


@dataclass(frozen=True)
class LaneAdmitted:
    """WAVE to LOOP on rank 0: tokens ``[start, end)`` of a request may be scheduled.

    Attributes:
        probe: see ``PrefillRequest``.
        after: a request of which the first ``start`` tokens have to be in waves before; empty for none.
    """

    request_id: str
    start: int
    end: int
    probe: bool = False
    after: str = ""


@dataclass(frozen=True)
class LaneAborted:
    """WAVE to LOOP on rank 0: schedule nothing of a request beyond its first ``until`` tokens, which others read."""

    request_id: str
    until: int = 0


@dataclass(frozen=True)
class LaneMaterialised:
    """LOOP to WAVE on rank 0: the request's blocks are its own; it holds no lease any more."""

    request_id: str


@dataclass(frozen=True)
class LaneScheduled:
    """LOOP to WAVE on rank 0: all of the request's chunks are in waves; its lane is free."""

    request_id: str


@dataclass(frozen=True)
class LaneEnded:
    """LOOP to WAVE on rank 0: no wave carries the request any more, and none will.

    Attributes:
        aborted: all ranks have yet to let go of it; otherwise it ran to its end.
    """

    request_id: str
    aborted: bool


LaneMessage = RequestsWaiting | LaneAdmitted | LaneAborted | Explain
"""What WAVE tells LOOP; a question goes on as it came."""
LaneProgress = LaneMaterialised | LaneScheduled | LaneEnded
