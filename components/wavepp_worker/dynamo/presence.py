"""Whether discovery still knows this worker.

An entry in discovery lives for about ten seconds unless its owner renews it. A worker that was stopped for longer, or
could not open files, is forgotten; Dynamo does not enter it again, and it would wait for requests in vain for ever,
healthy by its own account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

TICK_SECONDS = 1.0
"""Between two looks."""
LOOKS = 4
"""So many looks in a row find no entry of a worker that was forgotten, not of one whose news came late.

They are counted and not timed, as a process that stands still does not look.
"""
FIRST_LOOKS = 60
"""So many looks find no entry of a worker that was forgotten before its first, or could not be entered."""


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


async def watch_presence(endpoint: Any, on_lost: Callable[[str], None]) -> None:
    """Call ``on_lost`` with a sentence, once, when discovery does not have this worker for good; run until then.

    To be cancelled when the worker is told to stop: Dynamo takes it out of discovery first.

    Args:
        endpoint: Dynamo's endpoint, as this worker serves it.
    """
    client = await endpoint.client()
    presence = Presence()
    while (reason := presence.lost(endpoint.connection_id() in client.instance_ids())) is None:
        await asyncio.sleep(TICK_SECONDS)
    on_lost(reason)
