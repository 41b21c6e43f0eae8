"""The rooms of a bootstrap server, where a claim and a prefill meet in whichever order they come.

Pure: no threads, no clock (``now`` is given, in seconds), no sockets.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.offer import FirstToken, Offer

ROOMS_OVER_REMEMBERED = 4096
"""Rooms that are over, remembered to answer late claims at once and to ignore late news."""


@dataclass
class BootstrapRoom:
    """A room that is not over.

    Attributes:
        since: when it came up, or when its outcome was known.
        offer: what its prefill was registered with.
        open: whether its claimant may see the offer.
        outcome: the first token, or why there is none.
    """

    since: float
    offer: Offer | None = None
    open: bool = False
    outcome: FirstToken | str | None = None
    claimed: bool = False

    def settle(self, outcome: FirstToken | str, now: float) -> None:
        """The prefill is over; the first outcome stays."""
        if self.outcome is None:
            self.outcome = outcome
            self.since = now


class BootstrapRooms:
    """Every room from the first that is heard of it until it is over; it never comes back then.

    Args:
        keep: seconds an outcome waits for its claim.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._rooms: dict[int, BootstrapRoom] = {}
        self._over: OrderedDict[int, str] = OrderedDict()
        self._unwanted: dict[int, float] = {}

    def __len__(self) -> int:
        """Rooms that are registered or claimed, and not over."""
        return len(self._rooms)

    def awaited(self) -> int:
        """Those of which KV is held or still to come: a prefill that failed leaves a sentence alone."""
        return sum(not isinstance(entry.outcome, str) for entry in self._rooms.values())

    def register(self, room: int, offer: Offer, *, hold: bool, now: float) -> bool:
        """A prefill was accepted; False if its claimant came and left already, so that nobody wants it.

        Raises:
            HandoffError: the room is registered already, or over.
        """
        if self._unwanted.pop(room, None) is not None:
            return False
        if room in self._over:
            raise HandoffError(
                f"room {room} cannot be used for request {offer.request_id}: {self._over[room]}"
            )
        entry = self._rooms.setdefault(room, BootstrapRoom(now))
        if entry.offer is not None or entry.outcome is not None:
            raise HandoffError(f"room {room} is in use and cannot be used for request {offer.request_id} too")
        entry.offer = offer
        entry.open = not hold
        return True

    def open(self, room: int) -> None:
        """The claimant may see the offer. Ignored if the room is over."""
        entry = self._rooms.get(room)
        if entry is not None:
            entry.open = True

    def finish(self, room: int, first: FirstToken, now: float) -> None:
        """The prefill is done. Ignored if the room is over."""
        entry = self._rooms.get(room)
        if entry is not None:
            entry.settle(first, now)

    def fail(self, room: int, message: str, now: float) -> None:
        """There will be no first token. Ignored if the room is over; it need not be registered."""
        if room not in self._over and self._unwanted.pop(room, None) is None:
            self._rooms.setdefault(room, BootstrapRoom(now)).settle(message, now)

    def claim(self, room: int, now: float) -> BootstrapRoom | str:
        """Take a room for one claimant, or a sentence why it cannot be had."""
        if room in self._over:
            return f"room {room} cannot be claimed: {self._over[room]}"
        entry = self._rooms.setdefault(room, BootstrapRoom(now))
        if entry.claimed:
            return f"room {room} is claimed by another decode worker already"
        entry.claimed = True
        return entry

    def leave(self, room: int, *, told: bool, now: float) -> Offer | None:
        """Its claimant leaves, ``told`` the outcome or not; returns the offer that nobody wants any more."""
        entry = self._rooms.pop(room)
        self._close(room, "it has been answered" if told else "its claimant gave it up")
        if entry.offer is None and entry.outcome is None:
            self._unwanted[room] = now
        return None if told else entry.offer

    def abandon(self, room: int) -> Offer | None:
        """No claim will come; returns the offer whose KV nobody wants. Ignored if the room is claimed or over."""
        entry = self._rooms.get(room)
        if entry is None or entry.claimed:
            return None
        return self._unclaimed(room, "whoever was to claim it has left")

    def forget(self, now: float) -> list[Offer]:
        """Close rooms whose outcome nobody claimed in time; returns the offers whose KV nobody came for."""
        limit = now - self._keep
        unclaimed: list[Offer] = []
        for room, entry in list(self._rooms.items()):
            if entry.outcome is not None and not entry.claimed and entry.since <= limit:
                offer = self._unclaimed(room, f"nobody claimed it within {self._keep:.1f} s")
                if offer is not None:
                    unclaimed.append(offer)
        for room in [room for room, since in self._unwanted.items() if since <= limit]:
            del self._unwanted[room]
        return unclaimed

    def _unclaimed(self, room: int, why: str) -> Offer | None:
        entry = self._rooms.pop(room)
        self._close(room, why)
        return None if isinstance(entry.outcome, str) else entry.offer

    def _close(self, room: int, why: str) -> None:
        self._over[room] = why
        if len(self._over) > ROOMS_OVER_REMEMBERED:
            self._over.popitem(last=False)
