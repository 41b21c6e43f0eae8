"""What to do with a job that was delivered. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp_worker.intake.job_ledger import Recorded
from wavepp_worker.intake.messages import JobFailure, JobResult, Running, Waiting


@dataclass(frozen=True)
class Begin:
    """Run it.

    Attributes:
        attempt: which this is, from 1.
        replaces: the revision of the state that this replaces, 0 if there is none.
        forgiven: as of ``Waiting``.
    """

    attempt: int
    replaces: int
    forgiven: int = 0


@dataclass(frozen=True)
class Drop:
    """Acknowledge it, as it is answered, or another message of the same id is."""


@dataclass(frozen=True)
class GiveUp:
    """It has failed too often.

    Attributes:
        attempts: how often.
        reason: why the last time.
        replaces: as of ``Begin``.
    """

    attempts: int
    reason: str
    replaces: int


def superseded(found: Recorded | None, number: int) -> int | None:
    """The number of another message that has the job's id and was begun before; None if there is none."""
    if found is None or not isinstance(found.state, (Running, Waiting)):
        return None
    other = found.state.job
    return other if other and other != number else None


def under_way(found: Recorded | None, number: int) -> bool:
    """Whether the message of this number was begun, and is neither answered nor given up."""
    return found is not None and isinstance(found.state, (Running, Waiting)) and found.state.job == number


def decide(found: Recorded | None, *, other_is_there: bool, most_attempts: int) -> Begin | Drop | GiveUp:
    """Decide.

    Args:
        found: what became of it so far.
        other_is_there: the message that ``superseded`` names is still in the queue.
        most_attempts: how often it may be begun.
    """
    if found is None:
        return Begin(1, 0)
    state = found.state
    if isinstance(state, (JobResult, JobFailure)) or other_is_there:
        return Drop()
    if isinstance(state, Running):
        attempts = state.attempt
        # Had it ended otherwise, its replica would have said so.
        reason = f"replica {state.replica} was not heard of while it ran the job"
    else:
        attempts, reason = state.attempts, state.error
    if attempts >= most_attempts:
        return GiveUp(attempts, reason, found.revision)
    return Begin(attempts + 1, found.revision, state.forgiven)
