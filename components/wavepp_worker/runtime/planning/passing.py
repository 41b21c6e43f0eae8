"""Who may go before whom where requests come without waiting for answers; for ``mpu``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wavepp_worker.runtime.planning.planner import Lane

MAX_DELAY_SHARE = 0.03
"""Share of its time to first token by which a request that waits longer than most may be delayed by younger ones."""
DECAY_PER_ARRIVAL = 0.99
"""Weight of a request's time to first token in the mean, as a share of the next one's."""


class Passing:
    """Shortest first, as far as those who are passed can bear it.

    The mean time to first token is least if the shortest goes first, but the longest then wait without end. Here a
    request is delayed until it waits as long as requests do on average, and beyond that by ``MAX_DELAY_SHARE`` of its
    time. So whoever waits longest waits hardly longer than first come first served. Times are stage time.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._begun: dict[str, float] = {}
        self._delayed: dict[str, float] = {}
        self._mean = self._weight = 0.0

    def order(
        self, lanes: Sequence[Lane], works: Sequence[float], rest: float, wave: float
    ) -> Sequence[Lane]:
        """The lanes in the order in which the next wave should take them.

        Args:
            lanes: first come first.
            works: what is left of each.
            rest: time from a request's last wave on the first stage to its first token.
            wave: time of the next wave.
        """
        self._see(lanes, works, rest)
        begun, delayed, mean, now = self._begun, self._delayed, self._mean, self._now
        bearable, until = math.inf, now + rest
        candidates: list[tuple[float, int, float]] = []
        for i, lane in enumerate(lanes):
            work = works[i]
            if work <= bearable:
                candidates.append((work, i, bearable))
            until += work
            name = lane.request_id
            takes = until - begun.get(name, now)
            bears = max(MAX_DELAY_SHARE * takes - delayed.get(name, 0.0), mean - takes)
            if bears < bearable:
                bearable = bears
        if len(candidates) == 1:
            return lanes
        candidates.sort()
        first: list[int] = []
        taken = passed = 0.0
        for work, i, bearable in candidates:
            # The oldest passes nobody.
            if i:
                if passed + work > bearable:
                    continue
                passed += work
            first.append(i)
            taken += work
            if taken >= wave:
                break
        chosen = set(first)
        return [lanes[i] for i in first] + [lane for i, lane in enumerate(lanes) if i not in chosen]

    def launched(self, lanes: Sequence[Lane], works: Mapping[str, float], seconds: float) -> None:
        """A wave of ``seconds`` carries so much ``works`` of the requests in ``lanes``, which it has advanced."""
        self._now += seconds
        younger = 0.0
        for lane in reversed(lanes):
            name = lane.request_id
            if not lane.left:
                self._begun.pop(name, None)
                self._delayed.pop(name, None)
            elif younger:
                self._delayed[name] = self._delayed.get(name, 0.0) + younger
            younger += works.get(name, 0.0)

    def _see(self, lanes: Sequence[Lane], works: Sequence[float], rest: float) -> None:
        """Account for requests that came or left."""
        begun = self._begun
        if len(begun) == len(lanes) and lanes[-1].request_id in begun:
            return
        takes = rest
        for lane, work in zip(lanes, works, strict=True):
            takes += work
            if lane.request_id not in begun:
                begun[lane.request_id] = self._now
                self._weight = self._weight * DECAY_PER_ARRIVAL + 1
                self._mean += (takes - self._mean) / self._weight
        if len(begun) > len(lanes):
            present = {lane.request_id for lane in lanes}
            self._begun = {name: at for name, at in begun.items() if name in present}
            self._delayed = {name: delay for name, delay in self._delayed.items() if name in present}
