"""What becomes of a job that was sent, as far as its sender hears of it or finds out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

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
RECORDED_SECONDS = (0.0, 0.01, 0.05, 0.2)
"""The pauses before it is looked whether an answer that was heard is recorded: it may be heard a little sooner."""


class AnswerWait:
    """One sender's wait for the answer to one job. For one event loop."""

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
        self.heard: asyncio.Queue[JobState] = asyncio.Queue()
        """What is said of the job; whoever hears of it puts it there."""

    async def answer(
        self, sent: int | None, on_state: Callable[[JobState], None] | None, *, forgiven: bool
    ) -> Answer:
        """Wait until it is there.

        Args:
            sent: number of the job's message; None if that is another sender's.
            on_state: told what is heard meanwhile, and at the end.
            forgiven: the job failed before, and is run once more.

        Raises:
            QueueError: the server is not reached, or has lost the job.
        """
        job = self._job
        began = reached = time.monotonic()
        over = None if job.deadline_seconds is None else began + job.deadline_seconds + DEADLINE_GRACE_SECONDS
        misses = 0
        while True:
            look = LOOK_SECONDS if over is None else min(LOOK_SECONDS, max(0.05, over - time.monotonic()))
            try:
                state: JobState | None = await asyncio.wait_for(self.heard.get(), look)
            except asyncio.TimeoutError:
                state = None
            if isinstance(state, (JobResult, JobFailure)):
                state = await self._recorded()
            elif state is None:
                # What was said while the connection was lost is not heard again.
                try:
                    there = await self._streams.is_there(job.token)
                    found = await self._ledger.find(job.token)
                except Exception as error:
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
            if over is not None and time.monotonic() > over:
                why = (
                    f"job {job.id} was not answered, as its deadline_seconds={job.deadline_seconds} were over"
                )
                if not forgiven and await self._is_others(sent):
                    # Whoever sent it may still want it.
                    return JobFailure(
                        code="deadline",
                        error=f"{why}; another sender's job of its id goes on",
                        digest=job.digest,
                    )
                await self._give_up(why)

    async def find(self) -> Recorded | None:
        """What is recorded of the job; None if nothing is, or the server is not reached."""
        try:
            return await self._ledger.find(self._job.token)
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
        for pause in RECORDED_SECONDS:
            await asyncio.sleep(pause)
            found = await self.find()
            if found is not None and isinstance(found.state, (JobResult, JobFailure)):
                return found.state
        return None
