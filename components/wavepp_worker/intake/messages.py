"""What travels over the queue, as JSON: jobs, and what becomes of them. Frozen and typed."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from wavepp_worker.errors import InvalidRequest, JobTooLarge
from wavepp_worker.intake.names import ReplicaName, token
from wavepp_worker.intake.sentences import shortened
from wavepp_worker.model.sampling_params import SamplingParams

MOST_JOB_BYTES = 8_000_000
"""Of a job's JSON: a million token ids take about seven bytes each."""

MOST_SECONDS = 1e6

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What a server may count: another number in a state is somebody's mischief, and no server can be asked about it."""
FailureCode = Literal["invalid", "deadline", "cancelled", "failed"]


class JobSampling(SamplingParams, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a job's first token is chosen, greedily by default; ``logprobs`` is how many alternatives to report."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One prompt to prefill.

    Attributes:
        id: of the sender. A queue runs an id once: who sends it again gets what became of the first.
        token_ids: the prompt; or
        text: the prompt as text, for the model's own tokenizer, without the chat template.
        sampling: how the first token is chosen.
        salt: jobs share KV only under equal salts.
        priority: who has a higher one is admitted first by the replica that took it.
        replica: the instance of a prefill worker that should have it; others may once that has not taken it in time.
        deadline_seconds: after which, counted from when it was sent, nobody wants the answer.
        handoff: whether a decode worker will come for the KV; where to, is in the states.
        banned: token ids that the first token must not be.
        allowed: a bit for each token that it may be, that of token 0 lowest; empty for all.
    """

    id: Annotated[str, Meta(min_length=1, max_length=512)]
    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    sampling: JobSampling = JobSampling()
    salt: str = ""
    priority: int = 0
    replica: ReplicaName | None = None
    deadline_seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] | None = None
    handoff: bool = False
    banned: tuple[int, ...] = ()
    allowed: bytes = b""

    @property
    def token(self) -> str:
        """What stands for its id in subjects."""
        return token(self.id)

    @property
    def digest(self) -> str:
        """Equal for jobs that ask for the same."""
        asked = msgspec.structs.replace(self, priority=0, replica=None, deadline_seconds=None)
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:32]

    def encode(self) -> bytes:
        """As JSON.

        Raises:
            InvalidRequest: it is no job, or too large.
        """
        try:
            data = msgspec.json.encode(self)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the job cannot be sent: {error}") from error
        read_job(data)
        return data


def read_job(data: bytes, of: str | None = None) -> Job:
    """A job, checked.

    Args:
        data: JSON.
        of: the token of the subject that it came by, which only its own id may have.

    Raises:
        InvalidRequest: it is none; says why.
    """
    if len(data) > MOST_JOB_BYTES:
        raise JobTooLarge(
            f"the job has {len(data)} bytes, a queue takes at most {MOST_JOB_BYTES}; shorten its prompt"
        )
    try:
        job = msgspec.json.decode(data, type=Job)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # It may quote a name of any length.
        why = shortened(str(error))
        raise InvalidRequest(f"this is no job: {why}; docs/queue.md says what one is") from error
    if of is not None and job.token != of:
        raise InvalidRequest(
            f"the job's id is {job.id!r}, so its subject has to end with {job.token}, not with {of}"
        )
    _check_numbers(job)
    if (job.token_ids is None) == (job.text is None):
        both = "this one has both; leave one out" if job.text is not None else "this one has neither"
        raise InvalidRequest(f"a job needs token_ids (a list of integers) or text (a string), and {both}")
    return job


def _check_numbers(job: Job) -> None:
    """Refuse what ranks could not read, while the job is still known by its own id."""
    for field in ("priority", "banned", "sampling"):
        try:
            msgspec.msgpack.encode(getattr(job, field))
        except OverflowError as error:
            raise InvalidRequest(
                f"{field} of job {job.id!r} has a number that does not fit 64 bits; give a smaller one"
            ) from error


class HandoffAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a decode worker claims a job's KV, as text and numbers. Who has it may have the KV."""

    host: str
    port: int
    room: int
    secret: str


class JobTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a job went on the replica that ran it, in seconds."""

    queued: float
    admission: float
    execution: float
    total: float


class Running(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="running"
):
    """A replica works on the job.

    Attributes:
        job: number of the job's message in its stream.
        replica: which.
        attempt: counts from 1.
        handoff: where the KV can be claimed from now on, if the job asks for that.
        forgiven: as of ``Waiting``.
    """

    job: Count
    replica: str
    attempt: Count
    handoff: HandoffAddress | None = None
    forgiven: Count = 0


class Waiting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="waiting"
):
    """The job was begun, and is to be begun again.

    Attributes:
        job: as of ``Running``.
        attempts: those that failed.
        error: why the last one ended.
        forgiven: somebody has sent the job again since it failed, when the stream had messages up to this number. Such
            a message is of an earlier sender, whose cancellation and deadline do not count any more.
    """

    job: Count
    attempts: Count
    error: str
    forgiven: Count = 0


class JobResult(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="finished"
):
    """The answer to a job.

    Attributes:
        id, digest: the job's.
        replica: who ran it.
        attempt: which of its attempts that was, from 1.
        first_token: the first generated token.
        logprob: its own.
        top_logprobs: ``(token, logprob)``, best first, as many as the job asked for.
        prompt_tokens: of the prompt.
        reused_tokens: of these, those whose KV was there.
        timings: where the time went, on the replica.
        handoff: where its KV can be claimed, for a while, if the job asked for that.
    """

    id: str
    digest: str
    replica: str
    attempt: int
    first_token: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]
    prompt_tokens: int
    reused_tokens: int
    timings: JobTimings
    handoff: HandoffAddress | None = None

    @property
    def seconds(self) -> float:
        """From submission on the replica to the first token."""
        return self.timings.total


class JobFailure(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="state", tag="failed"
):
    """There is no answer to a job, and there will be none.

    Attributes:
        code: ``invalid`` is the job's own fault, ``deadline`` and ``cancelled`` its sender's wish; ``failed`` was given
            up after several attempts, and is kept among the dead jobs.
        error: a sentence.
        digest: the job's, None if that could not be read.
        attempts: how often it was begun.
    """

    code: FailureCode
    error: str
    digest: str | None = None
    attempts: int = 0


Answer = JobResult | JobFailure
JobState = Running | Waiting | JobResult | JobFailure


def read_state(data: bytes) -> JobState | None:
    """What became of a job; None if that is no such message."""
    try:
        return msgspec.json.decode(data, type=JobState)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
