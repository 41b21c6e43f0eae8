"""When a small wave is held for those who are about to ask again, under a steady load; for ``mpu``. Pure.

Clients that are answered together ask again together: a *group*, which goes in one wave, turn after turn. ``P`` stages
need ``P`` groups. Each one more costs every stage what a wave costs by itself, in every turn, and does not end by
itself: it is launched when rank 0's device would run dry, which is just before others have asked again.

So a small wave that takes all there is may be held although the device runs dry. If ``P`` waves are in flight it would
be one group more, and whom the oldest of them answers may join it. If there is one less, and not all have asked again
who were answered last, a group is about to part. What that can cost is bounded by what one wave more costs. Who has not
come by then has left, or thinks: from then on he is not missed, and for some waves nobody is, for twice as many after
each such *miss*. Likewise of requests that wait for their admission: they come in a moment, but not where they wait for
room or a place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavepp_worker.runtime.planning.demand import Demand
from wavepp_worker.runtime.planning.planner import LONGEST_HOLD_SECONDS, PipelineView
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

SMALL_SHARE = 0.8
"""Share of an equal wave below which a wave is small."""
ROUNDING_SHARE = 0.04
"""Share of a wave that may be left of the fewest waves for what all ask, before there is one more."""
FIRST_PAUSE_WAVES, LONGEST_PAUSE_WAVES = 32, 1024
"""Waves for which nobody is missed after the first miss, and after many."""


class Pause:
    """Counts waves during which something is not hoped for, twice as many each time."""

    def __init__(self) -> None:
        self._left, self._next = 0, FIRST_PAUSE_WAVES

    def __bool__(self) -> bool:
        return self._left > 0

    def begin(self) -> None:
        """It was hoped for in vain."""
        self._left, self._next = self._next, min(2 * self._next, LONGEST_PAUSE_WAVES)

    def launched(self) -> None:
        """A wave was launched."""
        self._left = max(0, self._left - 1)


class Gathering:
    """Whether the next wave is held for others to join it."""

    def __init__(self, stages: int, max_tokens: int) -> None:
        """``max_tokens`` fit into a wave."""
        self._stages, self._max_tokens = stages, max_tokens
        self._gone = 0
        """Requests that were missing at the latest miss, and still are."""
        self._nobody_missed, self._nobody_admitted = Pause(), Pause()

    def holds(self, view: PipelineView, spans: Sequence[Span], demand: Demand, cost: WaveCost) -> bool:
        """Whether this wave, which takes all there is, is held although rank 0's device is about to run dry."""
        self._gone = min(self._gone, demand.missing)
        admitting = view.admitting > 0 and not self._nobody_admitted
        if not self._small(spans, demand) or (self._nobody_missed and not admitting):
            return False
        if view.held >= min(cost.a, LONGEST_HOLD_SECONDS):
            self._gone = demand.missing
            self._nobody_missed.begin()
            if admitting:
                self._nobody_admitted.begin()
            return False
        waves = len(view.in_flight)
        if waves >= self._stages:
            return True
        return waves == self._stages - 1 and (admitting or demand.missing > self._gone)

    def launched(self) -> None:
        """A wave was launched."""
        self._nobody_missed.launched()
        self._nobody_admitted.launched()

    def _small(self, spans: Sequence[Span], demand: Demand) -> bool:
        """Whether it is small beside waves that all are the same, one a stage, or as few as hold what all ask."""
        waves = max(self._stages, math.ceil(demand.tokens / self._max_tokens - ROUNDING_SHARE))
        return sum(span.length for span in spans) * waves < SMALL_SHARE * demand.tokens
