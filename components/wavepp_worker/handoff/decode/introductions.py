"""Connections to prefill workers, of which few at a time have not said yet what they want."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.connection.message import HandoffMessage

CONNECT_SECONDS = 5.0
"""How long a peer may take to accept a connection."""
MOST_UNSAID = 16
"""Connections to one address at a time that have not said what they want."""


class Introductions:
    """Connects, and says at once what is wanted, for any number of requests at a time. For one event loop.

    To a listener of the prefill side these are strangers until then, and strangers push each other out. This process
    may stand still between the two, with as many connections as it has begun: a thousand requests that come at once,
    each with its own, would push out each other. So to each address there are ``MOST_UNSAID``; others wait their turn.

    Args:
        host: local address that connections come from.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._turns: WeakValueDictionary[tuple[str, int], asyncio.Semaphore] = WeakValueDictionary()

    async def connect(self, host: str, port: int, hello: HandoffMessage) -> Channel:
        """A connection to ``host:port`` on which ``hello`` has been sent.

        Raises:
            PeerSilent: nobody answered within ``CONNECT_SECONDS``.
            PeerLost: the connection was refused or broke, or cannot be tried here.
        """
        turns = self._turns.setdefault((host, port), asyncio.Semaphore(MOST_UNSAID))
        in_turn = await _acquired(turns)
        try:
            channel = await Channel.connect(host, port, self._host, CONNECT_SECONDS)
            try:
                await channel.send(hello)
            except BaseException:
                channel.close()
                raise
            return channel
        finally:
            if in_turn:
                turns.release()


async def _acquired(turns: asyncio.Semaphore) -> bool:
    """Whether a turn came; who has waited long goes without, as those before may wait for a host that is gone."""
    try:
        async with deadline.timeout(CONNECT_SECONDS):
            return await turns.acquire()
    except asyncio.TimeoutError:
        return False
