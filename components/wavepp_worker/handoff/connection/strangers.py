"""Connections whose peers have not identified themselves yet: bounded, shared fairly among addresses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Strangers:
    """Who came in and is not known yet, by address and in the order of their coming. Pure.

    Whoever opens many connections and says nothing pushes out its own oldest ones: a peer that speaks at once
    is served, however many others are silent. ``Channel.welcome`` ends a connection's time as a stranger.

    Args:
        limit: most of them at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_address: dict[str, OrderedDict[Hashable, None]] = {}
        self._address: dict[Hashable, str] = {}

    def __len__(self) -> int:
        return len(self._address)

    def enter(self, stranger: Hashable, address: str) -> Hashable | None:
        """One more; returns whom to show out, who counts no longer, if that is one too many."""
        self._address[stranger] = address
        self._by_address.setdefault(address, OrderedDict())[stranger] = None
        return self.push_out() if len(self) > self._limit else None

    def leave(self, stranger: Hashable) -> None:
        """It is known now, or gone. Others are ignored."""
        address = self._address.pop(stranger, None)
        if address is not None:
            crowd = self._by_address[address]
            del crowd[stranger]
            if not crowd:
                del self._by_address[address]

    def push_out(self) -> Hashable | None:
        """The oldest of the address that has most, who counts no longer; None if there is nobody."""
        if not self._by_address:
            return None
        crowd = max(self._by_address.values(), key=len)
        stranger = next(iter(crowd))
        self.leave(stranger)
        return stranger
