"""Whether a replica may take jobs of its queue now: not while others may count it as gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from wavepp_worker.errors import ConfigError
from wavepp_worker.intake.queue_peers import QueuePeers

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 2.0
"""Until it is asked again who is there, where others take the jobs or the server does not say."""

logger = logging.getLogger(__name__)


class Membership:
    """Of one replica that has joined those of its queue. For one event loop."""

    def __init__(
        self, peers: QueuePeers, silence: float, make_queue: Callable[[], Awaitable[None]], meanwhile: str
    ) -> None:
        """
        Args:
            peers: which it has joined.
            silence: seconds after which others count it as gone.
            make_queue: for a server that has lost it.
            meanwhile: what is so while it does not hold, for the log.
        """
        self._peers = peers
        self._silence = silence
        self._make_queue = make_queue
        self._meanwhile = meanwhile
        self._asked_after = peers.losses
        self._seen = time.monotonic()
        self._said = ""

    @property
    def holds(self) -> bool:
        """Whether it does, and jobs may be taken."""
        there = self._asked_after == self._peers.losses
        return there and time.monotonic() - self._seen <= self._silence

    async def watch(self) -> None:
        """Ask again who is there whenever this replica could not be asked for a while; until it is cancelled."""
        while True:
            if self.holds:
                self._seen = time.monotonic()
                await asyncio.sleep(LOOK_SECONDS)
            elif not await self._ask_again():
                await asyncio.sleep(AGAIN_SECONDS)

    async def _ask_again(self) -> bool:
        """Whether it holds again."""
        # So that it does not hold before others have answered.
        self._asked_after = -1
        losses = self._peers.losses
        try:
            await self._make_queue()
            await self._peers.ask_again()
        except ConfigError as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning(
                    "the queue is not open any more (%s), and tried again%s", error, self._meanwhile
                )
            return False
        except Exception as error:
            logger.debug("nobody says who takes jobs: %s", error)
            return False
        if self._said:
            logger.warning("the queue is open again")
        self._said = ""
        self._asked_after, self._seen = losses, time.monotonic()
        return True
