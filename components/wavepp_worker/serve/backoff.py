"""How long to wait before the next attempt."""

from __future__ import annotations

from collections import deque

MINUTE_SECONDS = 60.0


class Backoff:
    """Doubles the pause from one second to thirty, and lets only so many attempts into any minute.

    A minute of good life starts the doubling over.
    """

    def __init__(self, per_minute: int, first: float = 1.0, most: float = 30.0, stable: float = 60.0) -> None:
        """``per_minute`` attempts at most; the others are seconds."""
        self._first = first
        self._most = most
        self._stable = stable
        self._next = first
        self._attempts: deque[float] = deque(maxlen=per_minute)

    def after(self, lived: float, now: float) -> float:
        """The pause, in seconds, after a process that lived ``lived`` seconds and ended at ``now``."""
        if lived >= self._stable:
            self._next = self._first
        pause = self._next
        self._next = min(self._most, pause * 2)
        if len(self._attempts) == self._attempts.maxlen:
            pause = max(pause, self._attempts[0] + MINUTE_SECONDS - now)
        self._attempts.append(now + pause)
        return pause
