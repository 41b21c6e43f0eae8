"""The order to stop that a worker was given, and the time that its requests have since."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable

from wavepp_worker.liveness.stop_times import LEAVING, request_seconds

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often a worker looks whether its requests have ended."""


class StopOrder:
    """Given at most once; used on the worker's event loop alone.

    Attributes:
        reason: why a request fails that the worker has or gets now; None before its requests' time is over.
    """

    def __init__(self) -> None:
        self._seconds: int | None = None
        self._stop_by = 0.0
        self.reason: str | None = None

    @property
    def given(self) -> bool:
        return self._seconds is not None

    def give(self) -> None:
        """From now on the time runs; a second order gives no more."""
        if self._seconds is not None:
            return
        self._seconds = request_seconds(os.environ)
        self._stop_by = time.monotonic() + self._seconds
        # The launcher reads it: who leaves is still well, but no frontend finds it.
        sys.stderr.write(f"{LEAVING}told to stop; requests have {self._seconds} s to end\n")

    async def wait(self, is_quiescent: Callable[[], Awaitable[bool | None]]) -> None:
        """Return when all requests have ended or their time is over; at once if no order was given."""
        if self._seconds is None:
            return
        while not (quiet := await is_quiescent()) and time.monotonic() < self._stop_by:
            await asyncio.sleep(POLL_SECONDS)
        self.reason = (
            f"the worker was told to stop, and its requests had {self._seconds} s to end (--stop-timeout of the "
            "launcher); ask again"
        )
        if not quiet:
            logger.warning("some requests fail: %s", self.reason)
