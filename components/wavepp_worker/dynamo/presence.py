"""Whether discovery still knows this worker.

An entry in discovery lives for about ten seconds unless its owner renews it. A worker that was stopped for longer, or
could not open files, is forgotten; Dynamo does not enter it again, and it would wait for requests in vain for ever,
healthy by its own account.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

TICK_SECONDS = 1.0
STALL_SECONDS = 3.0
"""A pause of our own clock that says that this process did not run."""
RECENT_SECONDS = 30.0
"""How long after a stall an absence is put down to it."""
LOST_SECONDS = 4.0
"""After a stall: absent for so long, this worker has been forgotten."""
DRAINED_SECONDS = 45.0
"""Without a stall: a worker that is told to stop leaves discovery, then has half a minute for its last requests."""


class Presence:
    """Judges what it is told about once a second. Pure."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._stalled = float("-inf")
        self._seen = float("inf")

    def lost(self, present: bool, now: float) -> bool:
        """Whether discovery has forgotten this worker for good.

        Args:
            present: whether discovery has an entry of this worker now.
            now: monotonic seconds.
        """
        if self._last is not None and now - self._last > STALL_SECONDS:
            self._stalled = now
            # Not a moment of the pause counts: the entry may be renewed yet.
            if self._seen < now:
                self._seen = now
        self._last = now
        if present:
            self._seen = now
        limit = LOST_SECONDS if now - self._stalled < RECENT_SECONDS else DRAINED_SECONDS
        return now - self._seen > limit


async def watch_presence(endpoint: Any, on_lost: Callable[[str], None]) -> None:
    """Call ``on_lost`` with a sentence, once, when discovery has forgotten this worker; run until then.

    Args:
        endpoint: Dynamo's endpoint, as this worker serves it.
    """
    client = await endpoint.client()
    presence = Presence()
    while not presence.lost(endpoint.connection_id() in client.instance_ids(), time.monotonic()):
        await asyncio.sleep(TICK_SECONDS)
    on_lost(
        "discovery has forgotten this worker, which it does when a process is stopped or cannot open files for ten "
        "seconds; it has to be started anew to be found again"
    )
