"""A job that this replica has taken, from its message to the end of what is done for it here."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.intake.messages import FailureCode, HandoffAddress, Job, JobTimings
from wavepp_worker.intake.names import token_of
from wavepp_worker.runtime.protocol.requests import PrefillRequest, Timings

_numbers = itertools.count()


@dataclass
class TakenJob:
    """One delivery of a job's message.

    Attributes:
        message: of nats-py; what is acknowledged.
        token: the job's.
        job: once it was read.
        as_text: its prompt is text that is not made into tokens yet.
        admitted: it does not wait in this replica any more.
        unwanted: why nobody wants its answer: the code it is to end with, once somebody said so.
        handing_back: others shall run it, as this replica stops.
        forgiven: as of ``Waiting``.
    """

    message: Any
    token: str = field(init=False)
    job: Job | None = None
    as_text: bool = False
    admitted: bool = False
    unwanted: FailureCode | None = None
    handing_back: bool = False
    forgiven: int = 0

    def __post_init__(self) -> None:
        self.token = token_of(self.message.subject)

    @property
    def number(self) -> int:
        """The message's, in its stream."""
        return int(self.message.metadata.sequence.stream)

    @property
    def key(self) -> tuple[str, int]:
        """Equal for deliveries of one message: a stream that is made anew counts from 1 again."""
        return self.token, self.number

    def forgive(self, forgiven: int) -> None:
        """Forget who did not want it any more, if somebody does who came later: messages up to this number are older.

        When that one's deadline is, such a message does not say.
        """
        self.forgiven = forgiven
        if self.number <= forgiven:
            self.unwanted = None

    def late(self, now: Callable[[], float] = time.time) -> bool:
        """Whether its deadline has passed: ``now`` against the server's clock when it was sent."""
        if self.job is None or self.job.deadline_seconds is None or self.number <= self.forgiven:
            return False
        return now() > self.message.metadata.timestamp.timestamp() + self.job.deadline_seconds

    def stopped(self) -> bool:
        """Whether to stop running it; finds out that its deadline has passed."""
        if self.unwanted is None and self.late():
            self.unwanted = "deadline"
        return self.unwanted is not None or self.handing_back


def engine_request(job: Job, token_ids: tuple[int, ...] | list[int]) -> PrefillRequest:
    """A job as an engine takes it, under an id that no other run of it has.

    Raises:
        InvalidRequest: ``token_ids`` are none.
    """
    request = PrefillRequest.of(
        f"job-{job.token}-{next(_numbers)}",
        token_ids,
        salt=job.salt,
        sampling=job.sampling,
        handoff=job.handoff,
        banned=job.banned,
    )
    return msgspec.structs.replace(request, priority=job.priority, allowed=job.allowed)


def in_senders_words(sentence: str, job: Job) -> str:
    """What an engine says of a job's run, with the id that its sender knows in place of the engine's own."""
    own = rf"\brequest (['\"]?)job-{re.escape(job.token)}-\d+(-\d+)?\1(?![\w-])"
    return re.sub(own, lambda _: f"job {job.id}", sentence)


def handoff_address(address: BootstrapAddress) -> HandoffAddress:
    """Where KV can be claimed, as it travels in a state."""
    secret = address.secret.hex()
    return HandoffAddress(host=address.host, port=address.port, room=address.room, secret=secret)


def job_timings(timings: Timings) -> JobTimings:
    """An engine's timings of a prefill, as they travel in a state."""
    return JobTimings(
        queued=timings.queued,
        admission=timings.admission,
        execution=timings.execution,
        total=timings.total,
    )


def fresh_room() -> int:
    """A bootstrap room that nobody else uses, of 63 bits as Dynamo's own."""
    return secrets.randbits(63)
