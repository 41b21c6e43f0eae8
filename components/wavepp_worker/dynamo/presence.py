"""Whether discovery still knows this worker, and may.

An entry in discovery lives for about ten seconds unless its owner renews it. A worker that was stopped for longer, or
could not open files, is forgotten; Dynamo does not enter it again, and it would wait for requests in vain for ever,
healthy by its own account.

A worker that cannot open files for a moment loses requests of which it never hears (``dropped_requests``). It leaves
discovery then, upon which frontends fail what nobody has begun to answer, and comes back once it can open files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from wavepp_worker.dynamo.dropped_requests import DroppedRequests
from wavepp_worker.dynamo.spare_descriptors import SpareDescriptors

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Between two looks."""
LOOKS = 4
"""So many looks in a row find no entry of a worker that was forgotten, not of one whose news came late.

They are counted and not timed, as a process that stands still does not look.
"""
FIRST_LOOKS = 60
"""So many looks find no entry of a worker that was forgotten before its first, or could not be entered."""
SHORTEST_AWAY_SECONDS = 1.0
"""Out of discovery, so that every frontend sees it."""
LONGEST_AWAY_SECONDS = 6.0
"""Less than until discovery forgets what else it has of a worker that cannot open files."""


class Presence:
    """Judges one look after the other. Pure."""

    def __init__(self) -> None:
        self._entered = False
        self._missed = 0

    def lost(self, present: bool) -> str | None:
        """Why this worker has to be started anew, as discovery does not have it and will not; None if it may.

        Args:
            present: whether discovery has an entry of this worker now.
        """
        self._entered = self._entered or present
        self._missed = 0 if present else self._missed + 1
        if self._entered and self._missed >= LOOKS:
            return (
                "discovery has forgotten this worker, which it does when a process is stopped or cannot open files "
                "for ten seconds; it has to be started anew to be found again"
            )
        if self._missed >= FIRST_LOOKS:
            return (
                f"discovery has had no entry of this worker in {FIRST_LOOKS} looks since it started: it could not be "
                "entered, or was forgotten at once; it has to be started anew to be found"
            )
        return None


async def watch_presence(
    endpoint: Any, client: Any, on_lost: Callable[[str], None], dropped: DroppedRequests | None = None
) -> None:
    """Call ``on_lost`` with a sentence, once, when discovery does not have this worker for good; run until then.

    To be cancelled when the worker is told to stop: Dynamo takes it out of discovery first.

    Args:
        endpoint: Dynamo's endpoint, as this worker serves it.
        client: of this endpoint, one for all watches: what it takes to follow discovery, Dynamo never gives back.
        dropped: tells when requests were dropped; None if nobody counts them.
    """
    presence, spare = Presence(), SpareDescriptors()
    try:
        while True:
            if not spare.hold() or (dropped is not None and await dropped.more()):
                reason = await _stay_away(endpoint, spare, dropped)
            else:
                reason = presence.lost(endpoint.connection_id() in client.instance_ids())
            if reason is not None:
                break
            await asyncio.sleep(TICK_SECONDS)
    finally:
        spare.give_up()
        if dropped is not None:
            await dropped.close()
    on_lost(reason)


async def _stay_away(endpoint: Any, spare: SpareDescriptors, dropped: DroppedRequests | None) -> str | None:
    """Be out of discovery until files can be opened; a sentence if that takes so long that it is for good."""
    logger.warning(
        "files and connections cannot be opened, as it happens when descriptors run out; this worker leaves discovery "
        "until they can, so that whoever waits for an answer that it could not begin is told"
    )
    loop = asyncio.get_running_loop()
    latest = loop.time() + LONGEST_AWAY_SECONDS
    # Dynamo tries without a pause to accept a connection for which there is none.
    spare.give_up()
    with contextlib.suppress(Exception):
        # If it fails, its entry ends with the worker, or with its lease.
        await endpoint.unregister_endpoint_instance()
        await asyncio.sleep(SHORTEST_AWAY_SECONDS)
        while loop.time() < latest:
            if spare.hold():
                if dropped is not None:
                    # Whoever waits for those that were dropped meanwhile has been told.
                    await dropped.more()
                await endpoint.register_endpoint_instance()
                logger.warning("this worker can open files again, and is back in discovery")
                return None
            spare.give_up()
            await asyncio.sleep(SHORTEST_AWAY_SECONDS)
    return (
        "this worker could not open files, nor the connections for its answers; it has to be started anew. Raise its "
        "limit of descriptors (ulimit -n), or keep idle connections away from its ports"
    )
