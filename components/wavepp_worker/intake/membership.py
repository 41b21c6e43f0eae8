"""Whether a replica may take jobs of its queue now: not while others may count it as gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from wavepp_worker.errors import ConfigError
from wavepp_worker.intake.queue_peers import QueuePeers

LOOK_SECONDS = 0.1
TIMES_HEARD = 3
"""How often a replica asks whether it is heard, in the time after which others count it as gone."""
AGAIN_SECONDS = 2.0
"""Until it is asked again who is there, where others take the jobs or the server does not say."""

logger = logging.getLogger(__name__)


def now() -> float:
    """Seconds that go on while the host is suspended, as others' do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Membership:
    """Of one replica that has joined those of its queue. For one event loop.

    Others count it as gone once they have not heard of it for a while, whether it stands still or is cut off, which
    its connection may notice much later. So it holds only for as long after it was last known to be heard.
    """

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
        self._heard_at = now()
        self._said = ""

    @property
    def holds(self) -> bool:
        """Whether it does, and jobs may be taken."""
        there = self._asked_after == self._peers.losses
        return there and now() - self._heard_at <= self._silence

    async def watch(self) -> None:
        """Ask again who is there whenever this replica could not be asked for a while; until it is cancelled."""
        while True:
            if self.holds:
                await self._see_whether_heard()
            elif not await self._ask_again():
                await asyncio.sleep(AGAIN_SECONDS)

    async def _see_whether_heard(self) -> None:
        asked_at = now()
        asking = asyncio.ensure_future(self._peers.is_heard())
        try:
            while self.holds and not asking.done():
                await asyncio.wait({asking}, timeout=LOOK_SECONDS)
            # Who did not hold meanwhile has to ask others first, however soon it was heard after that.
            if self.holds and asking.result():
                self._heard_at = asked_at
        finally:
            asking.cancel()
        while self.holds and now() - asked_at < self._silence / TIMES_HEARD:
            await asyncio.sleep(min(LOOK_SECONDS, self._silence / TIMES_HEARD))

    async def _ask_again(self) -> bool:
        """Whether it holds again."""
        # So that it does not hold before others have answered.
        self._asked_after = -1
        losses = self._peers.losses
        try:
            await self._make_queue()
            await self._peers.ask_again()
            asked_at = now()
            if not await self._peers.is_heard():
                return False
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
        self._asked_after, self._heard_at = losses, asked_at
        return True
