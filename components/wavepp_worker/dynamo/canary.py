"""What a prefill engine answers to Dynamo's canary, its request of one token that proves that a worker answers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import msgspec

from wavepp_worker.errors import EngineDead
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

PROOF_SECONDS = 10.0
"""How long one proof lasts: canaries come more often, and each runs on all ranks."""


class Canary:
    """Proves that an engine runs, without getting in the way of whoever wants something of it.

    An idle engine has to prefill a token. One that has requests would have it wait behind them, which may be minutes:
    there, each thread of each rank is watched for as long as it works, and the engine dies if one hangs.
    """

    def __init__(self, engine: PrefillEngine, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._engine = engine
        self._clock = clock
        self._proved = -PROOF_SECONDS
        self._running: asyncio.Future[PrefillResult] | None = None
        self._numbers = itertools.count()

    async def prove(self, request: PrefillRequest) -> None:
        """Return if the engine runs; on the worker's event loop.

        Args:
            request: to prefill where that is needed, whatever its id.

        Raises:
            WaveppError: it does not.
        """
        engine = self._engine
        if not engine.alive:
            raise EngineDead("the prefill engine is not running")
        if self._running is None:
            if self._clock() - self._proved < PROOF_SECONDS or not engine.idle():
                return
            # Not the canary's id: who gives a canary up shall not end what later ones wait for.
            own = msgspec.structs.replace(request, request_id=f"canary-{next(self._numbers)}", probe=True)
            self._running = asyncio.wrap_future(engine.submit(own))
            self._running.add_done_callback(self._ended)
        await asyncio.shield(self._running)

    def _ended(self, running: asyncio.Future[PrefillResult]) -> None:
        self._running = None
        if not running.cancelled() and running.exception() is None:
            self._proved = self._clock()
