"""Dynamo's KV-aware router over the workers that take jobs of a queue: which of them a job should address."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dynamo._core import KvRouter, KvRouterConfig

from wavepp_worker.dynamo.own_runtime import own_runtime
from wavepp_worker.dynamo.runtime_args import RuntimeArgs
from wavepp_worker.serve.services import DEVICE_CREDIT, PREDICTED_SECONDS

logger = logging.getLogger(__name__)

CHOICE_SECONDS = 0.5
"""A choice takes a millisecond or two; a job that waits longer goes to whoever has room."""
LEAST_SHARE = 0.5
"""Of a prompt, that a busy replica has to have for being waited for."""


class JobRouter:
    """A ``Placement`` that asks Dynamo's router. For one event loop.

    The router hears the KV events of these workers, is told by each what it has already, and knows what they still have
    to do of what was sent from here. It predicts and counts as the frontend's does.
    """

    def __init__(self, runtime: RuntimeArgs, endpoint: str, block_size: int) -> None:
        """Nothing is opened yet.

        Args:
            runtime: of the worker that sends.
            endpoint: of the workers, ``NAMESPACE.COMPONENT.ENDPOINT``.
            block_size: in tokens, of the workers.
        """
        self._runtime = runtime
        self._path = endpoint
        self._block = block_size
        self._router: Any = None
        self._workers: Any = None
        self._turn = asyncio.Lock()
        self._leaving: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Hear of the workers from now on; who cannot goes on without, and no job addresses a replica."""
        try:
            own = await own_runtime(self._runtime)
            endpoint = own.endpoint(self._path)
            self._workers = await endpoint.client()
            config = KvRouterConfig(
                overlap_score_credit=DEVICE_CREDIT, router_predicted_ttl_secs=float(PREDICTED_SECONDS)
            )
            self._router = await asyncio.to_thread(KvRouter, endpoint, self._block, config)
        # Dynamo has no class of its own for what can go wrong here.
        except Exception as error:
            logger.warning(
                "jobs address no replica, so that whoever has room takes them: no router over %s: %s",
                self._path,
                error,
            )

    async def choose(self, job_id: str, tokens: list[int], salt: str, *, idle: bool) -> str | None:
        """As ``Placement`` says: the router's choice where no job waits, else only who has half of the prompt."""
        if self._router is None or not self._workers.instance_ids():
            return None
        try:
            return await asyncio.wait_for(self._choose(job_id, tokens, salt, idle), CHOICE_SECONDS)
        except asyncio.CancelledError:
            self.over(job_id)
            raise
        except Exception as error:
            self.over(job_id)
            logger.debug("job %s addresses no replica: %s", job_id, error)
            return None

    async def _choose(self, job_id: str, tokens: list[int], salt: str, idle: bool) -> str | None:
        # One after the other, as each is to know of the choice before it.
        async with self._turn:
            if not idle and (await self._best(tokens, salt))[2] * self._block < LEAST_SHARE * len(tokens):
                return None
            return f"{(await self._best(tokens, salt, job_id))[0]:x}"

    def over(self, job_id: str) -> None:
        """As ``Placement`` says."""
        if self._router is not None:
            task = asyncio.ensure_future(self._free(job_id))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _best(self, tokens: list[int], salt: str, job_id: str | None = None) -> tuple[int, int, int]:
        """Worker, its rank of data parallelism, blocks that it has; counts as that worker's for a job that is named."""
        best: tuple[int, int, int] = await self._router.best_worker(
            tokens, request_id=job_id, update_indexer=job_id is not None, cache_namespace=salt or None
        )
        return best

    async def _free(self, job_id: str) -> None:
        try:
            await asyncio.wait_for(self._router.free(job_id), CHOICE_SECONDS)
        except Exception as error:
            logger.debug("the router still counts job %s: %s", job_id, error)
