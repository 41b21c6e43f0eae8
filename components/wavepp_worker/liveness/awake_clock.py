"""A clock that stands still while its process is stopped or starved."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_NAP_SECONDS = 1.0
"""Most seconds that count between two readings: in what goes beyond, the whole process was stopped or starved."""


class AwakeClock:
    """Seconds for which this process ran, as whoever reads it again and again sees it.

    Where the process was stopped, or its machine suspended, its clock jumps: none of its threads, and nobody that it
    waits for, is to blame for that time.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, longest: float = LONGEST_NAP_SECONDS
    ) -> None:
        """``clock`` returns seconds; at most ``longest`` count between two readings."""
        self._clock = clock
        self._longest = longest
        self._last = clock()
        self.seconds = 0.0
        """As of the last reading."""

    def read(self) -> float:
        """Read it again. By one thread only."""
        now = self._clock()
        self.seconds += min(now - self._last, self._longest)
        self._last = now
        return self.seconds
