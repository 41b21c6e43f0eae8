"""What became of each job, in a stream that replicas and senders share: who writes says what it replaces."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from wavepp_worker.errors import QueueError
from wavepp_worker.intake.messages import JobFailure, JobResult, JobState, Waiting, read_state
from wavepp_worker.intake.sentences import shortened
from wavepp_worker.intake.streams import QueueStreams

WRITE_SECONDS = 300.0
"""How long a state is tried to be written while the server is not reached."""
AGAIN_SECONDS = 0.25
_WRONG_REVISION = 10071
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class Overtaken(Exception):
    """Somebody else has written what became of the job since."""


@dataclass(frozen=True)
class Recorded:
    """What a job's last writer said, and the revision by which to replace it."""

    state: JobState
    revision: int


class JobLedger:
    """One state a job; of two that replace the same one, one is refused. For one event loop."""

    def __init__(self, streams: QueueStreams) -> None:
        self._streams = streams

    async def find(self, job: str, seconds: float = 0.0, *, named: str | None = None) -> Recorded | None:
        """What became of a job; None if nobody has begun it.

        Args:
            job: its token.
            seconds: to try for.
            named: what errors call it, by default its token.

        Raises:
            QueueError: the server does not answer.
        """
        from nats.errors import Error, NoRespondersError
        from nats.js.errors import NotFoundError

        name = self._streams.name
        end = time.monotonic() + seconds
        while True:
            try:
                found = await self._streams.jetstream.get_last_msg(
                    name.states_stream, name.state(job), direct=True
                )
                break
            except NotFoundError:
                return None
            except Error as error:
                if time.monotonic() >= end:
                    raise QueueError(
                        f"the NATS server does not say what became of job {named or job}: {error}"
                    ) from error
                if isinstance(error, NoRespondersError):
                    # A server that came back with nothing in its store.
                    with suppress(Exception):
                        await self._streams.ensure()
            await asyncio.sleep(AGAIN_SECONDS)
        # What is no state is somebody's mischief, and stands for nothing but its revision.
        state = read_state(found.data or b"") or Waiting(job=0, attempts=0, error="its state cannot be read")
        return Recorded(state, found.seq)

    async def write(
        self,
        job: str,
        state: JobState,
        replaces: int,
        seconds: float = WRITE_SECONDS,
        *,
        named: str | None = None,
    ) -> int:
        """Say what became of a job.

        Its error is shortened, and an answer that is larger than the server takes becomes a failure that says so: the
        job would else be run again and again for it.

        Args:
            job: its token.
            replaces: the revision that was found, 0 if there was none.
            seconds, named: as of ``find``.

        Returns:
            the revision by which it can be replaced.

        Raises:
            Overtaken: that is not the last revision any more.
            QueueError: the server did not take it in all that time, or takes nothing as large.
        """
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError

        if isinstance(state, (Waiting, JobFailure)):
            state = msgspec.structs.replace(state, error=shortened(state.error))
        called, cut = named or job, False
        data = msgspec.json.encode(state)
        end = time.monotonic() + seconds
        while True:
            try:
                told = await self._streams.jetstream.publish(
                    self._streams.name.state(job), data, headers={_EXPECTED: str(replaces)}
                )
                return int(told.seq)
            except MaxPayloadError as error:
                if cut or (smaller := _failure_instead(state, len(data))) is None:
                    raise QueueError(
                        f"what became of job {called} has {len(data)} bytes, more than the NATS server takes "
                        "(max_payload)"
                    ) from error
                cut, state, data = True, smaller, msgspec.json.encode(smaller)
                continue
            except APIError as error:
                if error.err_code == _WRONG_REVISION:
                    return await self._after_refusal(job, state, replaces, end, called)
                failure: Exception = error
            except Error as error:
                failure = error
            if time.monotonic() > end:
                raise QueueError(
                    f"what became of job {called} could not be written in {seconds:.0f} s: {failure}"
                ) from failure
            await asyncio.sleep(AGAIN_SECONDS)

    async def _after_refusal(self, job: str, state: JobState, replaces: int, end: float, named: str) -> int:
        """It may have been written before, and the server's word of it lost; or the last one was forgotten by age."""
        found = await self.find(job, max(0.0, end - time.monotonic()), named=named)
        if found is None and replaces:
            return await self.write(job, state, 0, max(0.0, end - time.monotonic()), named=named)
        if found is not None and found.state == state:
            return found.revision
        raise Overtaken


def _failure_instead(state: JobState, size: int) -> JobFailure | None:
    """What to answer where the answer is too large; None where it is none."""
    sentence = f"the answer has {size} bytes, more than the NATS server takes; raise its max_payload"
    if isinstance(state, JobResult):
        return JobFailure(code="failed", error=sentence, digest=state.digest, attempts=state.attempt)
    if isinstance(state, JobFailure):
        return JobFailure(code=state.code, error=sentence, digest=state.digest, attempts=state.attempts)
    return None
