"""What becomes of a job that was sent, as far as its sender hears of it or finds out."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from wavepp_worker.errors import QueueError
from wavepp_worker.intake.decision import superseded
from wavepp_worker.intake.job_ledger import JobLedger, Recorded
from wavepp_worker.intake.messages import Answer, Job, JobFailure, JobResult, JobState
from wavepp_worker.intake.streams import QueueStreams

LOOK_SECONDS = 3.0
"""How often a sender that hears nothing looks for itself."""
LOST_LOOKS = 3
"""After which a job counts as lost that is neither queued nor answered."""
UNREACHED_SECONDS = 300.0
"""How long the answer to a job is waited for while the server is not reached."""
DEADLINE_GRACE_SECONDS = 1.0
"""How long after its deadline a sender itself gives a job up that no replica has."""
LAST_WORDS_SECONDS = 1.0
"""For each question to the server about a job whose deadline is over: it may not be reached any more."""
RECORDED_SECONDS = (0.0, 0.01, 0.05, 0.2)
"""The pauses before it is looked whether an answer that was heard is recorded: it may be heard a little sooner."""

_UNREACHED = "; what became of it is not known, as the NATS server is not reached"

Value = TypeVar("Value")


class AnswerWait:
    """One sender's wait for the answer to one job, from when it is made. For one event loop."""

    def __init__(
        self,
        streams: QueueStreams,
        ledger: JobLedger,
        job: Job,
        give_up: Callable[[str], Awaitable[None]],
    ) -> None:
        """``give_up``: called with a sentence once the job's deadline is over, has it answered by that."""
        self._streams = streams
        self._ledger = ledger
        self._job = job
        self._give_up = give_up
        self._deadline = math.inf if job.deadline_seconds is None else time.monotonic() + job.deadline_seconds
        self.heard: asyncio.Queue[JobState] = asyncio.Queue()
        """What is said of the job; whoever hears of it puts it there."""

    def left(self, most: float) -> float:
        """Seconds until the job's deadline, at most so many."""
        return max(0.0, min(most, self._deadline - time.monotonic()))

    async def in_time(self, work: Awaitable[Value]) -> Value:
        """What is asked of the server for the job: not waited for beyond its deadline, or only shortly.

        Raises:
            asyncio.TimeoutError: it is not done by then.
        """
        left = self._until_over()
        return await asyncio.wait_for(work, None if left == math.inf else max(LAST_WORDS_SECONDS, left))

    def too_late(self, how: str) -> JobFailure:
        """What its sender is told where the deadline is over, and the queue cannot say what became of it."""
        return JobFailure(code="deadline", error=f"{self._why()}{how}", digest=self._job.digest)

    async def answer(
        self, sent: int | None, on_state: Callable[[JobState], None] | None, *, forgiven: bool
    ) -> Answer:
        """Wait until it is there; its deadline is kept also while the server is not reached.

        Args:
            sent: number of the job's message; None if that is another sender's.
            on_state: told what is heard meanwhile, and at the end.
            forgiven: the job failed before, and is run once more.

        Raises:
            QueueError: the server is not reached, or has lost the job.
        """
        job = self._job
        reached = time.monotonic()
        misses = 0
        while True:
            state = await self._hear()
            if isinstance(state, (JobResult, JobFailure)):
                state = await self._recorded()
            elif state is None:
                # What was said while the connection was lost is not heard again.
                try:
                    there = await self.in_time(self._streams.is_there(job.token))
                    found = await self.in_time(self._ledger.find(job.token, named=job.id))
                except Exception as error:
                    if self._until_over() < 0:
                        return self.too_late(_UNREACHED)
                    if time.monotonic() - reached > UNREACHED_SECONDS:
                        raise QueueError(
                            f"the answer to job {job.id} is not known, as the NATS server has not been reached for "
                            f"{UNREACHED_SECONDS:.0f} s; send it again"
                        ) from error
                    continue
                reached = time.monotonic()
                state = found.state if found is not None else None
                misses = 0 if there else misses + 1
            if state is not None:
                if on_state is not None:
                    on_state(state)
                if isinstance(state, (JobResult, JobFailure)):
                    return state
            if misses >= LOST_LOOKS:
                raise QueueError(
                    f"job {job.id} is lost: it is neither queued nor answered, as its stream was emptied; send it again"
                )
            if self._until_over() < 0:
                try:
                    if not forgiven and await self.in_time(self._is_others(sent)):
                        # Whoever sent it may still want it.
                        return self.too_late("; another sender's job of its id goes on")
                    await self.in_time(self._give_up(self._why()))
                except (QueueError, asyncio.TimeoutError):
                    return self.too_late(_UNREACHED)

    async def _hear(self) -> JobState | None:
        """What is said next; None if nothing is until it is time to look."""
        try:
            return await asyncio.wait_for(self.heard.get(), min(LOOK_SECONDS, max(0.05, self._until_over())))
        except asyncio.TimeoutError:
            return None

    def _until_over(self) -> float:
        """Seconds until its sender gives the job up."""
        return self._deadline + DEADLINE_GRACE_SECONDS - time.monotonic()

    def _why(self) -> str:
        job = self._job
        return f"job {job.id} was not answered, as its deadline_seconds={job.deadline_seconds} were over"

    async def find(self) -> Recorded | None:
        """What is recorded of the job; None if nothing is, or the server is not reached."""
        try:
            return await self._ledger.find(self._job.token, named=self._job.id)
        except QueueError:
            # Looked for again soon.
            return None

    async def _is_others(self, sent: int | None) -> bool:
        """Whether what runs under the job's id, or is to, is not the message of this number."""
        return sent is None or superseded(await self.find(), sent) is not None

    async def _recorded(self) -> Answer | None:
        """The answer that is recorded, once one was heard; None if there is none, and for now none can be found.

        All hear an answer that the server then refuses, as its writer did not know the state before.
        """
        with suppress(asyncio.TimeoutError):
            return await self.in_time(self._soon_recorded())
        return None

    async def _soon_recorded(self) -> Answer | None:
        for pause in RECORDED_SECONDS:
            await asyncio.sleep(pause)
            found = await self.find()
            if found is not None and isinstance(found.state, (JobResult, JobFailure)):
                return found.state
        return None
