"""Has prompts prefilled through a queue, for a decode worker that fetches their KV. For one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from wavepp_worker import token_ids
from wavepp_worker.errors import QueueError, RequestAborted, WaveppError
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.intake.etcd_key import EtcdKey
from wavepp_worker.intake.limits_key import LimitsKey, limits_key
from wavepp_worker.intake.messages import HandoffAddress, Job, JobResult, JobSampling, JobState, Running
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.opening import open_soon
from wavepp_worker.intake.placement import Placement
from wavepp_worker.intake.prefill_limits import PrefillLimits
from wavepp_worker.intake.prefill_queue import answered
from wavepp_worker.intake.queue_client import QueueClient
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.unresponsive_replicas import UnresponsiveReplicas
from wavepp_worker.nats_variables import nats_environment
from wavepp_worker.runtime.protocol.requests import PrefillRequest

logger = logging.getLogger(__name__)

_MEANWHILE = "; until then this worker prefills all by itself"
POLL_SECONDS = 0.05
"""How often a waiting request looks whether its caller gave up."""
LAST_WORDS_SECONDS = 2.0
"""For what is still to be said of jobs when a worker stops."""
WAITED_SECONDS = 1.0
"""A job that others have sooner was taken along with older ones: it waits twice as long for a replica."""
LOOK_SECONDS = 0.5
"""How often it is looked how long the queue is."""


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
        self._placement = placement
        self._unresponsive = unresponsive
        self._sent = time.monotonic()
        self._heard = 0
        self._is_placed = job.replica is not None
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
        if self._placement is not None and self._is_placed:
            self._is_placed = False
            self._placement.over(self._job.id)

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
        if self._heard == 0 and now - self._sent >= WAITED_SECONDS:
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


class RemotePrefill:
    """The queue, as a decode worker uses it.

    Attributes:
        limits: what decides who prefills; may be changed at any time.
        sent: prompts that were prefilled through the queue, or tried to be.
        addressed: those of them whose job addressed a replica.
        returned: those of them that this worker had to prefill itself after all.
    """

    def __init__(
        self,
        config: RemotePrefillConfig,
        name: QueueName,
        placement: Placement | None = None,
        *,
        etcd: bool = False,
    ) -> None:
        """Nothing is connected yet; where the server is, is read from the environment now.

        Args:
            placement: says which replica a prompt should go to; without, whoever has room takes it.
            etcd: whether the limits are also what a key of etcd says.

        Raises:
            ConfigError: a certificate for etcd cannot be read.
        """
        self.limits = PrefillLimits(
            max_local_prefill_length=config.max_local_prefill_length,
            max_prefill_queue_size=config.max_prefill_queue_size,
        )
        self.patience = config.remote_prefill_patience
        self.sent = self.addressed = self.returned = 0
        self._client = QueueClient(name, config.nats_server, nats_environment())
        self._placement = placement
        self._unresponsive = UnresponsiveReplicas()
        self._queued = 0
        self._sent_since: set[str] = set()
        self._reached = False
        self._leaving: set[asyncio.Task[None]] = set()
        self._etcd = EtcdKey(limits_key(name)) if etcd else None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect; a server that is not there is waited for 3 s, and after that while this worker prefills all itself.

        Raises:
            ConfigError: the server has no JetStream, or there can be none.
        """
        self._tasks.append(await open_soon(self._open, _MEANWHILE))
        if self._etcd is not None:
            self._tasks.append(asyncio.create_task(self._obey(self._etcd)))

    async def _open(self) -> None:
        await self._client.open(None, _MEANWHILE)
        self._reached = True
        self._tasks.append(asyncio.create_task(self._look()))
        logger.info("sends long prompts to the queue")

    async def close(self) -> None:
        """Leave; idempotent, also if never opened."""
        for task in self._tasks:
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=LAST_WORDS_SECONDS)
        for task in self._leaving:
            task.cancel()
        await self._client.close()

    def wanted(self, uncached_tokens: int) -> bool:
        """Whether a prompt is to be prefilled through the queue."""
        return self._reached and self.limits.remotely(uncached_tokens, self._depth())

    async def send(self, request: PrefillRequest) -> RemoteJob:
        """Queue a prompt, under an id of its own: clients may choose those of requests, and use one twice.

        Args:
            request: as an engine here would take it.
        """
        self.sent += 1
        idle = self._depth() == 0
        job_id = f"{request.request_id}-{uuid.uuid4().hex}"
        self._sent_since.add(job_id)
        tokens = token_ids.unpack(request.tokens).tolist()
        replica = await self._placed(job_id, tokens, request.salt, idle=idle)
        self.addressed += replica is not None
        job = Job(
            id=job_id,
            token_ids=tuple(tokens),
            sampling=JobSampling(
                **{name: getattr(request.sampling, name) for name in request.sampling.__struct_fields__}
            ),
            salt=request.salt,
            priority=request.priority,
            banned=request.banned,
            allowed=request.allowed,
            handoff=True,
            replica=replica,
        )
        return RemoteJob(
            self._client, job, self._placement, self._unresponsive, self._sent_since, self._leaving
        )

    async def _placed(self, job_id: str, tokens: list[int], salt: str, *, idle: bool) -> str | None:
        if self._placement is None:
            return None
        replica = await self._placement.choose(job_id, tokens, salt, idle=idle)
        if replica is None or not self._unresponsive.is_unresponsive(replica, time.monotonic()):
            return replica
        # It was counted as the replica's when it was chosen.
        self._placement.over(job_id)
        return None

    def _depth(self) -> int:
        """Jobs in the queue: when it was looked at, and those sent since, so that a burst sees its own length."""
        return self._queued + len(self._sent_since)

    async def _obey(self, etcd: EtcdKey) -> None:
        """Take over what the key says, whenever it changes."""
        key = LimitsKey(self.limits)

        def tell(value: bytes | None) -> None:
            limits = key.limits(value) or self.limits
            if limits != self.limits:
                logger.warning("the limits of remote prefills are now %s, as etcd says", limits)
            self.limits = limits

        await etcd.follow(tell)

    async def _look(self) -> None:
        while True:
            try:
                self._queued = await self._client.depth()
                self._sent_since.clear()
                self._reached = True
            except Exception as error:
                # Until it is back, all is prefilled here.
                self._reached = False
                logger.debug("the queue cannot be looked at: %s", error)
            await asyncio.sleep(LOOK_SECONDS)


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
