"""A worker that takes no new requests for a while, because an operator says so."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from wavepp_worker.errors import InvalidRequest, WorkerPaused
from wavepp_worker.liveness.pause_lines import PAUSED, RESUMED

logger = logging.getLogger(__name__)

HEARD_SECONDS = 1.0
"""After a worker has left discovery, how long frontends may not have heard of it: what they send is taken."""
DISCOVERY_SECONDS = 5.0
"""That leaving discovery, or coming back, may take."""
POLL_SECONDS = 0.05
"""How often a worker looks whether its requests have ended."""


class Pause:
    """Whether a worker is paused. Used on its event loop alone; calls may overlap in any order.

    A paused worker is out of discovery, so frontends send it nothing, and refuses what comes all the same. Its requests
    go on to their ends. It stays well by its own account, and keeps its KV.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._since = 0
        self._paused = False
        self._refuses = False
        self._coming_back = False

    @property
    def on(self) -> bool:
        return self._paused

    def check_open(self) -> None:
        """Raise WorkerPaused if requests are refused now."""
        if self._refuses and not self._coming_back:
            raise WorkerPaused(
                "this worker is paused and takes no requests until it is resumed; send them to another, or ask again"
            )

    async def begin(
        self,
        endpoint: Any,
        stopped: Callable[[], Awaitable[None]],
        resumed: Callable[[], None],
        is_quiescent: Callable[[], Awaitable[bool | None]],
        wait: float,
    ) -> bool:
        """Leave discovery; then wait for requests to end, but no longer than ``wait`` seconds.

        Args:
            endpoint: Dynamo's endpoint, as this worker serves it.
            stopped: stops everything else that brings requests, or looks whether discovery has this worker.
            resumed: takes that up again.
            is_quiescent: whether nobody waits for anything of this worker.

        Returns:
            Whether all have ended.

        Raises:
            InvalidRequest: it was resumed meanwhile.
            WorkerPaused: it could not leave discovery, and is not paused.
        """
        async with self._lock:
            if not self._paused:
                try:
                    await stopped()
                    await _within(endpoint.unregister_endpoint_instance(), "leave")
                except BaseException:
                    resumed()
                    raise
                self._paused = True
                self._since += 1
                sys.stderr.write(f"{PAUSED}takes no new requests until it is resumed\n")
                sys.stderr.flush()
            since = self._since
        loop = asyncio.get_running_loop()
        heard, deadline = loop.time() + HEARD_SECONDS, loop.time() + HEARD_SECONDS + wait
        while self._paused and self._since == since:
            if loop.time() >= heard:
                self._refuses = True
                if await is_quiescent():
                    return True
                if loop.time() >= deadline:
                    return False
            await asyncio.sleep(POLL_SECONDS)
        raise InvalidRequest("the worker was resumed before it was quiet")

    async def end(self, endpoint: Any, resumed: Callable[[], None]) -> bool:
        """Come back into discovery; returns False if the worker was not paused.

        Args:
            endpoint: as of ``begin``.
            resumed: as of ``begin``.

        Raises:
            WorkerPaused: it could not come back, and is still paused.
        """
        async with self._lock:
            if not self._paused:
                return False
            # Frontends may send requests before this returns; whoever waits in ``begin`` goes on meanwhile.
            self._coming_back = True
            try:
                await _within(endpoint.register_endpoint_instance(), "come back into")
            finally:
                self._coming_back = False
            self._paused = self._refuses = False
            resumed()
            sys.stderr.write(f"{RESUMED}takes requests again\n")
            sys.stderr.flush()
            return True


async def _within(step: Awaitable[Any], what: str) -> None:
    try:
        await asyncio.wait_for(step, DISCOVERY_SECONDS)
    except Exception as error:
        logger.warning("this worker could not %s discovery", what, exc_info=error)
        raise WorkerPaused(
            f"this worker could not {what} discovery within {DISCOVERY_SECONDS:g} s "
            f"({type(error).__name__}: {error}); try again"
        ) from error
