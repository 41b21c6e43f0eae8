"""How much work comes while the first stage is busy, and so how long it will stay busy; for ``mpu``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DECAY_PER_ARRIVAL = 0.99
"""Weight of an arrival, as a share of the next one's: about the last 100 count."""
LOAD_GUESS = 0.3
"""Load before anything came."""
GUESS_WAVES = 2.0
"""Full waves of busy time that the guess counts for."""
LEAST_REQUESTS = 1e-3
"""Fewer than that are what rounding has left of none."""
RECENT_ARRIVALS = 512
"""That can be forgotten: of those before, less than a hundredth is left."""
MAX_LOAD = 0.98
"""From here on a busy period is as good as endless: what is learned does not tell 0.98 from 1."""


@dataclass
class _Arrival:
    """The work of a request, what of it counted as load, what of it is left, and how many had come before it."""

    work: float
    counted: float
    left: float
    number: int


class Arrivals:
    """Requests that come without waiting for answers, without a clock.

    A planner does not see how long a stage idles, but it knows how long its waves keep one busy. Independent arrivals
    are as frequent while a stage is busy as while it is not, so what comes in that time is the *load*: stage time per
    time. Not those who begin a busy period: it is because of them that it is one. As a burst takes a moment to come,
    neither time nor arrivals count until the stage was busy for as long as a request takes on average.

    All times are stage time in any unit that stays the same.
    """

    def __init__(self, full: float) -> None:
        """``full`` is the time of a full wave."""
        self._busy = GUESS_WAVES * full
        self._least = LEAST_REQUESTS * full
        self._came = LOAD_GUESS * self._busy
        self._work = self._requests = 0.0
        self._period = 0.0
        self._number = 0
        self._recent: dict[str, _Arrival] = {}

    def see(self, works: Mapping[str, float], idle: bool) -> None:
        """Requests of so much work came; when the first of them did, the first stage was ``idle``."""
        if idle:
            self._period = 0.0
        counts = self._requests > 0 and self._period > self._work / self._requests
        for request_id, work in works.items():
            counted = work if counts else 0.0
            self._busy = max(self._least, self._busy * DECAY_PER_ARRIVAL)
            self._came = self._came * DECAY_PER_ARRIVAL + counted
            self._work = self._work * DECAY_PER_ARRIVAL + work
            self._requests = self._requests * DECAY_PER_ARRIVAL + 1
            self._number += 1
            self._recent.pop(request_id, None)
            self._recent[request_id] = _Arrival(work, counted, work, self._number)
            if len(self._recent) > RECENT_ARRIVALS:
                del self._recent[next(iter(self._recent))]

    def forget(self, request_ids: Iterable[str]) -> None:
        """These left without an answer: they count for the share of their work that was done.

        That kept the first stage busy as any other work does.
        """
        for request_id in request_ids:
            arrival = self._recent.pop(request_id, None)
            if arrival is None:
                continue
            undone = arrival.left / arrival.work if arrival.work else 1.0
            weight = undone * DECAY_PER_ARRIVAL ** (self._number - arrival.number)
            self._came = max(0.0, self._came - weight * arrival.counted)
            self._work -= weight * arrival.work
            self._requests -= weight
        if self._requests < LEAST_REQUESTS or self._work <= 0:
            self._work = self._requests = 0.0

    def launched(self, seconds: float, works: Mapping[str, float]) -> None:
        """The first stage is busy for that much longer, with so much work of these requests."""
        for request_id, work in works.items():
            if arrival := self._recent.get(request_id):
                arrival.left = max(0.0, arrival.left - work)
        self._period += seconds
        if self._requests:
            self._busy += max(0.0, min(seconds, self._period - self._work / self._requests))

    def to_come(self, work: float, overhead: float) -> tuple[float, float]:
        """Requests, and their work, that come before the first stage has done ``work`` and all that comes meanwhile.

        Args:
            overhead: what waves cost by themselves, as a share of the work in them.
        """
        if not self._requests or not self._work:
            return 0.0, 0.0
        load = self._came / self._busy
        busy = work / (1 - min(MAX_LOAD, load * (1 + overhead)))
        return load * busy * self._requests / self._work, busy - work
