"""The endpoint ``get_perf_metrics``, where Dynamo's planner asks what forward passes cost before it decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from wavepp_worker.dynamo.own_runtime import own_runtime
from wavepp_worker.dynamo.pass_samples import PassSamples
from wavepp_worker.dynamo.runtime_args import RuntimeArgs

logger = logging.getLogger(__name__)

ENDPOINT = "get_perf_metrics"
UNREGISTER_SECONDS = 1.0


class PerfMetrics:
    """Serves a worker's samples beside what it generates.

    Dynamo's own worker serves one endpoint, so this one is of a runtime of its own, with another id in discovery.
    """

    def __init__(self, runtime: RuntimeArgs, samples: PassSamples) -> None:
        self._runtime = runtime
        self._samples = samples
        self._endpoint: Any = None
        self._serving: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Serve from now on; a worker that cannot goes on without."""
        try:
            own = await own_runtime(self._runtime)
            self._endpoint = own.endpoint(f"{self._runtime.namespace}.{self._runtime.component}.{ENDPOINT}")
            self._serving = asyncio.ensure_future(self._endpoint.serve_endpoint(self.answer))
            self._serving.add_done_callback(_log_failure)
        # Dynamo has no class of its own for what can go wrong here.
        except Exception as error:
            logger.warning("%s is not served: %s", ENDPOINT, error)

    async def answer(self, request: object) -> AsyncGenerator[dict[str, Any], None]:
        """What was seen so far."""
        del request
        yield self._samples.results()

    async def close(self) -> None:
        """Leave discovery; idempotent, also if never opened."""
        serving, self._serving = self._serving, None
        if serving is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._endpoint.unregister_endpoint_instance(), UNREGISTER_SECONDS)
            serving.cancel()


def _log_failure(serving: asyncio.Future[None]) -> None:
    if not serving.cancelled() and (error := serving.exception()) is not None:
        logger.warning("%s is not served any more: %s", ENDPOINT, error)
