"""Opens a queue for a worker: at once if its server is there, else as soon as it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from wavepp_worker.errors import ConfigError

AT_ONCE_SECONDS = 3.0
"""How long a worker that starts waits for the server, before it goes on without."""
SETTLE_SECONDS = 30.0
"""How long it waits beyond that, where the server was there, for what others at the queue say."""
LOOK_SECONDS = 0.1
"""How often it looks whether it still settles."""
AGAIN_SECONDS = 2.0
"""Until it is tried again to open the queue of a server that was reached and does not do."""

logger = logging.getLogger(__name__)


async def open_soon(
    attempt: Callable[[], Awaitable[None]], meanwhile: str, settling: asyncio.Event | None = None
) -> asyncio.Task[None]:
    """Return once the queue is open, or after ``AT_ONCE_SECONDS``, ``SETTLE_SECONDS`` later while it is settling.

    Args:
        attempt: connects, for as long as that takes, and makes what the queue needs; also once more after it failed.
        meanwhile: what is so until then, for the log.
        settling: set by the attempt once the server has the queue, while it asks others who are there; cleared when the
            attempt has failed.

    Returns:
        Ends when the queue is open; to be cancelled by whoever leaves before. Who cancels this call has cancelled that.

    Raises:
        ConfigError: the server is there at once, and of no use; or there can be none.
    """
    late, settling = asyncio.Event(), settling or asyncio.Event()
    task = asyncio.create_task(_open(attempt, meanwhile, late, settling))
    try:
        await asyncio.wait({task}, timeout=AT_ONCE_SECONDS)
        end = time.monotonic() + SETTLE_SECONDS
        while settling.is_set() and not task.done() and (left := end - time.monotonic()) > 0:
            await asyncio.wait({task}, timeout=min(LOOK_SECONDS, left))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.done():
        task.result()
    late.set()
    return task


async def _open(
    attempt: Callable[[], Awaitable[None]], meanwhile: str, late: asyncio.Event, settling: asyncio.Event
) -> None:
    said = ""
    while True:
        try:
            return await attempt()
        except Exception as error:
            if not late.is_set() and isinstance(error, ConfigError):
                raise
            if str(error) != said:
                said = str(error)
                logger.warning("the queue is not open yet (%s), and tried again%s", error, meanwhile)
        settling.clear()
        await asyncio.sleep(AGAIN_SECONDS)
