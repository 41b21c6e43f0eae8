"""How long a step of a thread may take before the thread counts as hung, from what such steps took. Pure."""

from __future__ import annotations

STEP_MULTIPLE = 10.0
"""How many times as long as the slowest step of its size lately a step may take."""
DECAY_PER_STEP = 0.995
"""By what the slowest step's weight falls with each later one: one freak step shall not stretch the bound for ever."""
FIRST_SIZE_MULTIPLE = 2.0
"""A step of more than so many times the largest size that ran before is a first one: what it touches first may have to
be read from disk, or compiled."""


class StepBound:
    """Learns what the steps of one thread cost. Sizes are in any unit, as only their ratios matter."""

    def __init__(self, least: float, first: float) -> None:
        """``least``: seconds that every step may take; ``first``: that one may of which none like it ran before."""
        self._least = least
        self._first = max(least, first)
        self._largest = 0.0
        self._slowest = 0.0

    def seconds(self, size: float) -> float:
        """That a step of this size may take."""
        if size > FIRST_SIZE_MULTIPLE * self._largest:
            return self._first
        return max(self._least, STEP_MULTIPLE * self._slowest * size)

    def observe(self, size: float, seconds: float) -> None:
        """Account for a step that took so many seconds."""
        self._largest = max(self._largest, size)
        self._slowest = max(DECAY_PER_STEP * self._slowest, seconds / size)
