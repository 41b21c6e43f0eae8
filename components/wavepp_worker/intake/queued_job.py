"""Where a job is that no replica here has: in the queue, and behind how many."""

from __future__ import annotations

import datetime

import msgspec

from wavepp_worker.intake.job_ledger import JobLedger
from wavepp_worker.intake.messages import Running, Waiting
from wavepp_worker.intake.names import address_of, token, token_of
from wavepp_worker.intake.streams import QueueStreams


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Where one job is.

    Attributes:
        request_id: of the job; that of a request begins it where a decode worker sent it.
        state: ``in the queue``, or ``elsewhere`` if a replica has begun it.
        sentence: the same for people.
        seconds: since the queue has it.
    """

    request_id: str
    state: str
    sentence: str
    seconds: float


async def queued_job(streams: QueueStreams, ledger: JobLedger, request_id: str) -> QueuedJob | None:
    """Where the job of an id is, or the one that a request of this id waits for; None if no message is of it.

    Raises:
        QueueError: the server does not say.
    """
    subject = await streams.subject_of(token(request_id))
    found = None if subject is None else await streams.message(subject)
    if subject is None or found is None:
        return None
    sent, ahead = found
    recorded = await ledger.find(token_of(subject))
    state = None if recorded is None else recorded.state
    seconds = max(0.0, (datetime.datetime.now(datetime.timezone.utc) - sent).total_seconds())
    place, sentence = (
        "in the queue",
        f"is in the queue of jobs, behind at most {ahead:,} other{'' if ahead == 1 else 's'}",
    )
    if isinstance(state, Running):
        place, sentence = "elsewhere", f"is taken by replica {state.replica}, at attempt {state.attempt}"
    elif isinstance(state, Waiting):
        sentence += f", as attempt {state.attempts} failed: {state.error}"
    elif subject != streams.name.job(token_of(subject)):
        sentence += f", and addresses replica {address_of(subject)}, which others may take it from"
    return QueuedJob(request_id=request_id, state=place, sentence=sentence, seconds=seconds)
