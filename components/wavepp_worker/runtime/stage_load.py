"""How much of the recent past the slowest stage was busy. Pure."""

from __future__ import annotations

import math

MEMORY = 4.0
"""Seconds after which what happened counts a third."""


class StageLoad:
    """An exponential average over time of what executed waves took.

    Attributes:
        busy: share of the time in which the slowest stage executed waves.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._seconds = 0.0
        self._then: float | None = None

    def executed(self, seconds: float) -> None:
        """A wave ended that took the slowest stage ``seconds``."""
        self._seconds += seconds

    def at(self, now: float) -> float:
        """``busy`` at ``now``, seconds of a clock that never goes back."""
        if self._then is None:
            self._then, self._seconds = now, 0.0
        elapsed = now - self._then
        if elapsed > 0:
            kept = math.exp(-elapsed / MEMORY)
            self.busy = min(1.0, kept * self.busy + (1 - kept) * self._seconds / elapsed)
            self._then, self._seconds = now, 0.0
        return self.busy
