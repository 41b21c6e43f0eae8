"""One prompt in the queue, as the decode worker sees it that sent it. For one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from wavepp_worker.errors import QueueError, RequestAborted, WaveppError
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.intake.messages import HandoffAddress, Job, JobResult, JobState, Running
from wavepp_worker.intake.placement import Placement
from wavepp_worker.intake.prefill_queue import answered
from wavepp_worker.intake.queue_client import QueueClient
from wavepp_worker.intake.unresponsive_replicas import UnresponsiveReplicas

POLL_SECONDS = 0.05
"""How often a waiting request looks whether its caller gave up."""


class RemoteJob:
    """One prompt in the queue.

    Attributes:
        attempt: the last whose address was given; 0 if none was.
    """

    def __init__(
        self,
        client: QueueClient,
        job: Job,
        placement: Placement | None,
        unresponsive: UnresponsiveReplicas,
        waiting: set[str],
        leaving: set[asyncio.Task[None]],
    ) -> None:
        """Sends it.

        Args:
            placement: told when the replica that it addresses has it no more.
            unresponsive: told who begins it.
            waiting: has its id until somebody has begun it, or it is over.
            leaving: holds what is still said of it once nobody waits for it.
        """
        self.attempt = 0
        self._leaving = leaving
        self._placed_by = placement if job.replica is not None else None
        self._unresponsive = unresponsive
        self._sent = time.monotonic()
        self._heard = 0
        self._waiting = waiting
        self._client = client
        self._job = job
        self._addresses: asyncio.Queue[Running | None] = asyncio.Queue()
        self._asking = asyncio.create_task(self._ask())
        self._asking.add_done_callback(self._over)

    async def _ask(self) -> JobResult:
        try:
            return answered(await self._client.ask(self._job, self._hear))
        finally:
            self._addresses.put_nowait(None)

    def _over(self, asking: asyncio.Task[JobResult]) -> None:
        self._waiting.discard(self._job.id)
        self._placed_no_more()

    def _placed_no_more(self) -> None:
        placed_by, self._placed_by = self._placed_by, None
        if placed_by is not None:
            placed_by.over(self._job.id)

    def _hear(self, state: JobState) -> None:
        if isinstance(state, Running):
            self._waiting.discard(self._job.id)
            # What is recorded is also looked up again and again while nothing is heard.
            if state.attempt > self._heard:
                self._begun_by(state.replica)
                self._heard = state.attempt
        if isinstance(state, Running) and state.handoff is not None:
            self._addresses.put_nowait(state)

    def _begun_by(self, replica: str) -> None:
        now, addressed = time.monotonic(), self._job.replica
        self._unresponsive.began(replica, now)
        if addressed in (None, replica):
            return
        # Others may have a further attempt after the first failed there.
        if self._heard == 0:
            self._unresponsive.passed_over(addressed, self._sent, now)
        self._placed_no_more()

    async def address(self, seconds: float, is_stopped: Callable[[], bool]) -> BootstrapAddress:
        """Where its KV can be claimed, of an attempt that was not given before.

        Args:
            is_stopped: whether the caller gave up; looked at while waiting.

        Raises:
            InvalidRequest: a prefill worker refuses it.
            QueueError: nobody has begun it within ``seconds``, or the queue fails.
            RequestAborted: the caller gave up.
            RequestFailed: it was given up.
        """
        running = None
        waiting = asyncio.ensure_future(self._newer())
        end = time.monotonic() + seconds
        try:
            while running is None:
                done, _ = await asyncio.wait({waiting}, timeout=POLL_SECONDS)
                if done:
                    running = waiting.result()
                elif is_stopped():
                    raise RequestAborted(f"request of job {self._job.id} was aborted by its caller")
                elif time.monotonic() > end:
                    raise QueueError(
                        f"no prefill worker has begun job {self._job.id} within {seconds:g} s "
                        "(--remote-prefill-patience)"
                    )
        finally:
            waiting.cancel()
        assert running.handoff is not None
        self.attempt = running.attempt
        return bootstrap_address(running.handoff)

    async def _newer(self) -> Running:
        while (running := await self._addresses.get()) is not None:
            if running.attempt > self.attempt:
                return running
        self._asking.result()
        raise QueueError(f"job {self._job.id} was answered without its KV being handed over")

    def leave(self, *, done: bool) -> None:
        """Wait for nothing more; unless it is done, nobody wants it any more, which the queue is told by and by."""
        self._asking.add_done_callback(_seen)
        if not done and not self._asking.done():
            self._asking.cancel()
            task = asyncio.create_task(self._cancel())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _cancel(self) -> None:
        with suppress(WaveppError):
            await self._client.cancel(self._job.id)


def bootstrap_address(address: HandoffAddress) -> BootstrapAddress:
    """An address out of a state, as decode engines take it.

    Raises:
        QueueError: it is none.
    """
    try:
        secret = Secret.from_hex(address.secret)
    except ValueError as error:
        raise QueueError(f"the job's state has no secret of a hand-off: {error}") from error
    return BootstrapAddress(host=address.host, port=address.port, room=address.room, secret=secret)


def _seen(asking: asyncio.Task[JobResult]) -> None:
    """Its end is nobody's concern any more."""
    if not asking.cancelled():
        asking.exception()
