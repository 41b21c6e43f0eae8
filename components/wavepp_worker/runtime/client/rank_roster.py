"""What each rank has said of itself: that it is ready, where its KV can be had, and that it is alive. Pure."""

from __future__ import annotations

from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.runtime.protocol.events import Heartbeat, RankReady


class RankRoster:
    """The ranks of one engine; the engine calls it under its lock."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._ready: dict[int, RankReady] = {}
        self._beats: dict[int, Heartbeat] = {}
        self._heard: dict[int, float] = {}

    def ready(self, event: RankReady, now: float) -> bool:
        """Note a rank as ready at ``now``, in seconds; returns whether all are now."""
        self._ready[event.rank] = event
        self.alive(event.rank, now)
        return len(self._ready) == self._ranks

    def missing(self) -> list[int]:
        """Ranks that are not ready yet."""
        return sorted(set(range(self._ranks)) - set(self._ready))

    def handoff_addresses(self) -> tuple[RankAddress, ...]:
        """Where decode workers find the ranks that hand KV off, in rank order."""
        addresses = (self._ready[rank].handoff for rank in sorted(self._ready))
        return tuple(address for address in addresses if address is not None)

    def beat(self, event: Heartbeat) -> None:
        """Note a rank's load."""
        self._beats[event.rank] = event

    def alive(self, rank: int, now: float) -> None:
        """Note a rank's process as running at ``now``, in seconds."""
        self._heard[rank] = now

    def beats(self) -> list[Heartbeat]:
        """The last heartbeats, in rank order, of the ranks that sent one."""
        return [beat for _, beat in sorted(self._beats.items())]

    def silent(self, since: float) -> int | None:
        """A rank that was last heard of before ``since``."""
        return next((rank for rank, heard in self._heard.items() if heard < since), None)
