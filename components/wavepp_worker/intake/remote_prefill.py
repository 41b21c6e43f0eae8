"""Has prompts prefilled through a queue, for a decode worker that fetches their KV. For one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from wavepp_worker import token_ids
from wavepp_worker.intake.etcd_key import EtcdKey
from wavepp_worker.intake.limits_key import LimitsKey, limits_key
from wavepp_worker.intake.messages import Job, JobSampling
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.opening import open_soon
from wavepp_worker.intake.placement import Placement
from wavepp_worker.intake.prefill_limits import PrefillLimits
from wavepp_worker.intake.queue_client import QueueClient
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_job import RemoteJob
from wavepp_worker.intake.unresponsive_replicas import UnresponsiveReplicas
from wavepp_worker.nats_variables import nats_environment
from wavepp_worker.runtime.protocol.requests import PrefillRequest

logger = logging.getLogger(__name__)

_MEANWHILE = "; until then this worker prefills all by itself"
LAST_WORDS_SECONDS = 2.0
"""For what is still to be said of jobs when a worker stops."""
LOOK_SECONDS = 0.5
"""How often it is looked how long the queue is."""


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
