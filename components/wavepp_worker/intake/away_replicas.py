"""Replicas that a router still knows, but that take no jobs: paused, shut out of the queue, or hung.

Pure: no clock (``now`` is given, in seconds), no threads, no sockets.
"""

from __future__ import annotations

AWAY_SECONDS = 10.0
"""How long no job addresses a replica that let one go, which costs the job the time it waits for it."""


class AwayReplicas:
    """What a sender of jobs has seen of replicas. One that lets a job go and takes others meanwhile is merely busy."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}
        self._away: dict[str, float] = {}

    def took(self, replica: str, now: float) -> None:
        """It has begun a job."""
        self._away.pop(replica, None)
        # Replicas that are started again have new names.
        self._took = {name: at for name, at in self._took.items() if now - at < AWAY_SECONDS}
        self._took[replica] = now

    def let_go(self, replica: str, sent: float, now: float) -> None:
        """Another one has begun a job that addressed it, ``sent`` a while ago."""
        if self._took.get(replica, sent) <= sent:
            self._away[replica] = now + AWAY_SECONDS

    def __contains__(self, replica: str) -> bool:
        return replica in self._away

    def forget(self, now: float) -> None:
        """Let those be addressed again that have been away for long enough."""
        self._away = {name: until for name, until in self._away.items() if now < until}
