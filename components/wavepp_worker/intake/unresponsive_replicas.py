"""Replicas that a router still knows, but that begin no jobs: paused, shut out of the queue, or hung.

Pure: no clock (``now`` and ``sent`` are given, in seconds of one clock), no threads, no sockets.
"""

from __future__ import annotations

SHUNNED_SECONDS = 10.0
"""How long a replica gets no more jobs addressed to it: each of them would wait for it in vain first."""
WAITED_SECONDS = 1.0
"""A job that another has sooner was taken along with older ones: it waits twice as long for its replica."""
REMEMBERED_SECONDS = 600.0
"""How long it is known when a replica last began a job. Those that are started again have new names."""


class UnresponsiveReplicas:
    """What a sender of jobs has seen of replicas.

    One that lets another have a job of this sender, but began one since that was sent, is merely busy. One that is busy
    with what others sent looks unresponsive.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._shunned: dict[str, float] = {}

    def began(self, replica: str, now: float) -> None:
        """It has begun a job."""
        self._shunned.pop(replica, None)
        self._began = {name: at for name, at in self._began.items() if now - at < REMEMBERED_SECONDS}
        self._began[replica] = now

    def passed_over(self, replica: str, sent: float, now: float) -> None:
        """Another one was first to begin a job that was ``sent`` to it."""
        if now - sent >= WAITED_SECONDS and self._began.get(replica, sent) <= sent:
            self._shunned = {name: until for name, until in self._shunned.items() if now < until}
            self._shunned[replica] = now + SHUNNED_SECONDS

    def is_unresponsive(self, replica: str, now: float) -> bool:
        """Whether no job should address it."""
        return now < self._shunned.get(replica, now)
