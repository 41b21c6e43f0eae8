"""Sends jobs to a queue and gets their answers; for one event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from wavepp_worker.errors import InvalidRequest, JobTooLarge, QueueError
from wavepp_worker.intake.answer_wait import AnswerWait
from wavepp_worker.intake.job_consumers import JobConsumers
from wavepp_worker.intake.job_ledger import JobLedger, Overtaken, Recorded
from wavepp_worker.intake.messages import (
    Answer,
    FailureCode,
    Job,
    JobFailure,
    JobResult,
    JobState,
    Waiting,
    read_state,
)
from wavepp_worker.intake.names import QueueName, token
from wavepp_worker.intake.server_address import connect
from wavepp_worker.intake.streams import QueueStreams

SEND_SECONDS = 60.0
"""How long a job is tried to be sent while the server is not reached."""
AGAIN_SECONDS = 0.25
FORGIVEN_SECONDS = 2.0
"""How long the message of a job that failed may take to leave its stream."""
_NOT_STORED = 10077
_TOO_MANY = (10047, 10023)


Value = TypeVar("Value")


class QueueClient:
    """One queue, seen by a sender."""

    def __init__(self, name: QueueName, server: str | None, environment: Mapping[str, str]) -> None:
        """``server``, ``environment``: as of ``servers``; nothing is connected yet."""
        self.name = name
        self._server = server
        self._environment = environment
        self._connection: Any = None

    async def open(self, seconds: float | None, meanwhile: str = "") -> None:
        """Connect, if that is not done, and make the queue.

        Args:
            seconds, meanwhile: as of ``connect``.

        Raises:
            ConfigError: the server has no JetStream, or there can be none.
            QueueError: the server is not there within ``seconds``.
        """
        if self._connection is None:
            self._connection = await connect(
                self._server, self._environment, "wavepp client", seconds, meanwhile
            )
        self._streams = QueueStreams(self._connection, self.name)
        self._consumers = JobConsumers(self._connection, self.name)
        self._ledger = JobLedger(self._streams)
        await self._streams.ensure()

    async def close(self) -> None:
        """Leave; idempotent. Jobs that were sent go on."""
        if self._connection is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._connection.close(), 2.0)

    async def ask(
        self, job: Job, on_state: Callable[[JobState], None] | None = None, *, again: bool = False
    ) -> Answer:
        """Send a job and wait for what becomes of it; of one whose id is known, for what becomes of that.

        Args:
            job: what to prefill.
            on_state: told what is heard of it meanwhile, and at the end.
            again: run it once more if all that became of its id is that it failed.

        Raises:
            InvalidRequest: it is no job, or its id is that of one which asks for something else.
            JobTooLarge: the queue takes none as large.
            QueueError: the server is not reached, or the queue is full, or has lost the job.
        """
        data = job.encode()
        wait = AnswerWait(self._streams, self._ledger, job, lambda why: self.cancel(job.id, "deadline", why))

        async def hear(message: Any) -> None:
            if (state := read_state(message.data)) is not None:
                wait.heard.put_nowait(state)

        subscription = await self._connection.subscribe(self.name.state(job.token), cb=hear)
        try:
            try:
                sent, forgiven = await wait.in_time(self._begin(job, data, wait, again=again))
            except asyncio.TimeoutError:
                return wait.too_late(" before the NATS server said that it took it")
            answer = await wait.answer(sent, on_state, forgiven=forgiven)
        finally:
            with suppress(Exception):
                await subscription.unsubscribe()
        if answer.digest is not None and answer.digest != job.digest:
            raise InvalidRequest(
                f"job id {job.id} is that of another job, which asked for something else; choose another id"
            )
        return answer

    async def _begin(
        self, job: Job, data: bytes, wait: AnswerWait, *, again: bool
    ) -> tuple[int | None, bool]:
        """Queue a job, unless what became of it is known.

        Returns:
            number of its message in the stream, None if that is another sender's or there is none; and whether it
            failed before, and is run once more.
        """
        found = await self._ledger.find(job.token, SEND_SECONDS, named=job.id)
        forgiven = again and await self._forgive(job, found)
        if found is not None and isinstance(found.state, (JobResult, JobFailure)) and not forgiven:
            # Sent once more it would be dropped without a word.
            wait.heard.put_nowait(found.state)
            return None, False
        seconds = wait.left(FORGIVEN_SECONDS) if forgiven else 0.0
        return await self._send_until_taken(job, data, wait, seconds), forgiven

    async def cancel(self, job_id: str, code: FailureCode = "cancelled", why: str = "") -> None:
        """Say that nobody wants a job's answer any more; one that is answered stays so.

        Raises:
            QueueError: the server is not reached.
        """
        job = token(job_id)
        answer = JobFailure(code=code, error=why or f"job {job_id} was cancelled by its sender")
        while True:
            found = await self._ledger.find(job, SEND_SECONDS, named=job_id)
            if found is not None and isinstance(found.state, (JobResult, JobFailure)):
                return
            with suppress(Overtaken):
                revision = found.revision if found else 0
                await self._ledger.write(job, answer, revision, SEND_SECONDS, named=job_id)
                await self._connection.publish(self.name.cancel(job), b"")
                return

    async def _forgive(self, job: Job, found: Recorded | None) -> bool:
        """Have a job that failed begin anew, however often that was; False if it did not fail, and stays as it is."""
        if found is None or not isinstance(found.state, JobFailure):
            return False
        with suppress(Overtaken):
            before = await self._last_number()
            anew = Waiting(job=0, attempts=0, error="it is sent again", forgiven=before)
            await self._ledger.write(job.token, anew, found.revision, SEND_SECONDS, named=job.id)
        # Who was quicker has it begin anew as well.
        return True

    async def _last_number(self) -> int:
        from nats.errors import Error

        end = time.monotonic() + SEND_SECONDS
        while True:
            try:
                return await self._streams.last_number()
            except Error as error:
                if time.monotonic() > end:
                    raise QueueError(
                        f"the NATS server does not say which jobs were sent: {error or 'no answer'}"
                    ) from error
            await asyncio.sleep(AGAIN_SECONDS)

    async def _send_until_taken(self, job: Job, data: bytes, wait: AnswerWait, seconds: float) -> int | None:
        """Queue a job, or find what becomes of the one of its id.

        Args:
            wait: hears what is known of it already.
            seconds: to try for, while an earlier message of its id is still there.

        Returns:
            number of its message in the stream; None if that has one of its id.
        """
        end = time.monotonic() + seconds
        while (sent := await self._send(job, data)) is None:
            if time.monotonic() >= end:
                if (found := await wait.find()) is not None:
                    wait.heard.put_nowait(found.state)
                return None
            await asyncio.sleep(AGAIN_SECONDS)
        return sent

    async def depth(self) -> int:
        """Jobs in the queue that no replica has taken.

        Raises:
            QueueError: the server does not answer.
        """
        from nats.errors import Error

        try:
            loads = await self._consumers.loads()
            orphans = await self._streams.jobs() - sum(load.waiting + load.taken for load in loads)
        except Error as error:
            raise QueueError(f"the NATS server does not say how long the queue is: {error}") from error
        # Those address replicas that never were, or wait for the first replica at all.
        return sum(load.waiting for load in loads) + max(0, orphans)

    async def served(self) -> bool:
        """Whether a worker asks for jobs, or has some. One whose room is all taken otherwise does neither.

        Raises:
            QueueError: the server does not answer.
        """
        return any(load.asking or load.taken for load in await self._told(self._consumers.loads()))

    async def others(self) -> list[str]:
        """As of the streams.

        Raises:
            QueueError: the server does not say.
        """
        return await self._told(self._streams.others())

    async def _told(self, question: Awaitable[Value]) -> Value:
        from nats.errors import Error

        try:
            return await question
        except Error as error:
            raise QueueError(f"the NATS server does not say who is there: {error}") from error

    async def _send(self, job: Job, data: bytes) -> int | None:
        """Queue it; returns the number of its message, None if its id is known."""
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError

        end = time.monotonic() + SEND_SECONDS
        # Of this sending alone, whose word may be lost: the id itself is seen to by the stream and the states.
        headers = {"Nats-Msg-Id": f"{job.token}.{uuid.uuid4().hex}"}
        while True:
            try:
                told = await self._streams.jetstream.publish(
                    self.name.job(job.token, job.replica), data, headers=headers
                )
                return int(told.seq)
            except MaxPayloadError as error:
                most = self._connection.max_payload
                raise JobTooLarge(
                    f"job {job.id} has {len(data)} bytes, the NATS server takes at most {most} with headers "
                    "(max_payload); shorten its prompt, or raise that"
                ) from error
            except APIError as error:
                if error.err_code == _NOT_STORED and "per subject" in (error.description or ""):
                    return None
                if error.err_code in (_NOT_STORED, *_TOO_MANY):
                    raise QueueError(f"the queue takes no more jobs: {error.description}") from error
                failure: Exception = error
            except Error as error:
                failure = error
            if time.monotonic() > end:
                raise QueueError(
                    f"job {job.id} could not be sent in {SEND_SECONDS:.0f} s: {failure or 'no answer'}"
                ) from failure
            await asyncio.sleep(AGAIN_SECONDS)
            with suppress(Exception):
                await self._streams.ensure()
