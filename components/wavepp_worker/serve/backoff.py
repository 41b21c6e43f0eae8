"""How long to wait before the next attempt."""

from __future__ import annotations

from collections import deque

MINUTE_SECONDS = 60.0
FIRST_SECONDS = 1.0
MOST_SECONDS = 30.0
STABLE_SECONDS = 60.0
"""A life so long starts the doubling over."""


class Backoff:
    """Doubles the pause from ``FIRST_SECONDS`` to ``MOST_SECONDS``; lets only so many attempts into any minute."""

    def __init__(self, per_minute: int) -> None:
        """``per_minute`` attempts at most."""
        self._next = FIRST_SECONDS
        self._attempts: deque[float] = deque(maxlen=per_minute)

    def after(self, lived: float, now: float) -> float:
        """The pause, in seconds, after a process that lived ``lived`` seconds and ended at ``now``."""
        if lived >= STABLE_SECONDS:
            self._next = FIRST_SECONDS
        pause = self._next
        self._next = min(MOST_SECONDS, pause * 2)
        if len(self._attempts) == self._attempts.maxlen:
            pause = max(pause, self._attempts[0] + MINUTE_SECONDS - now)
        self._attempts.append(now + pause)
        return pause
