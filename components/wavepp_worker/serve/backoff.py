"""How long to wait before the next attempt."""

from __future__ import annotations


class Backoff:
    """Doubles the pause from one second to thirty; a minute of good life starts over."""

    def __init__(self, first: float = 1.0, most: float = 30.0, stable: float = 60.0) -> None:
        """Seconds, all three."""
        self._first = first
        self._most = most
        self._stable = stable
        self._next = first

    def after(self, lived: float) -> float:
        """The pause, in seconds, after a process that lived ``lived`` seconds."""
        if lived >= self._stable:
            self._next = self._first
        pause = self._next
        self._next = min(self._most, pause * 2)
        return pause
