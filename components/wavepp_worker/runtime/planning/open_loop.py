"""How long waves take, and in which order they take requests, where these come without waiting for answers. Pure.

Of ``P`` stages ``Q = P - 1`` lie behind the first; ``a`` is what a wave costs by itself. Where each stage takes as
long for a wave, the last is done with it ``Q`` times the longest wave of the busy period after the first is. So one
long wave makes all behind it wait, and a shorter one behind it gains nothing: waves are at least as long as those in
flight. With waves of ``w`` a request that ends with the ``u``-th second of work waits for ``u + a * u / w`` on the
first stage and for ``Q * (a + w)`` behind it. The mean over requests is least for

    ``w = sqrt(a * mean(u) / Q)``

where the mean is over all requests of the busy period: those that wait, and those that are still to come and will wait
for every ``a`` that is spent now (``Arrivals``). With little load that is a request alone, cut finely; with much load
the busy period, and ``w`` with it, becomes long: full waves.

How much is still to come nobody knows, and what few requests tell of it is far off. So waves take the geometric mean of
that ``w`` and of the length that would have served those best that came (``WaveLengthTrials``), which errs in other
ways.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate

from wavepp_worker.runtime.planning.arrivals import Arrivals
from wavepp_worker.runtime.planning.equal_waves import equal_waves
from wavepp_worker.runtime.planning.lane_work import spans_work, works
from wavepp_worker.runtime.planning.passing import Passing
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.riding import riding_pays
from wavepp_worker.runtime.planning.trials import WaveLengthTrials
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span


class OpenLoop:
    """Sizes waves and orders requests for the least mean time to first token.

    ``Arrivals`` and ``Passing`` count times in tokens, of which each costs 1 without context: seconds change while
    their cost is learned.
    """

    def __init__(self, stages: int, max_tokens: int, min_tokens: int) -> None:
        self._stages = stages
        self._max_tokens, self._min_tokens = max_tokens, min_tokens
        self._arrivals = Arrivals(max_tokens)
        self._trials = WaveLengthTrials(stages, max_tokens)
        self._passing = Passing()
        self._lengths = deque([0.0] * 2 * stages, maxlen=2 * stages)
        self._latest = max_tokens / 2

    def see(self, came: Sequence[Lane], cost: WaveCost, idle: bool, now: float | None) -> None:
        """Account for requests that came; the first stage was ``idle`` when the first of them did.

        Args:
            now: seconds on a clock that never goes back; None if there is none, or they wait for answers.
        """
        self._arrivals.see({lane.request_id: cost.work(lane.next, lane.left) / cost.b for lane in came}, idle)
        if now is not None and self._stages > 1:
            self._trials.see(came, cost, now)

    def go_on(self, cost: WaveCost, now: float) -> None:
        """Do some of what a burst left to do; ``now`` as of ``see``."""
        self._trials.go_on(cost, now)

    def forget(self, request_ids: Collection[str]) -> None:
        """These left without an answer: what is left of their work nobody asks for any more."""
        self._arrivals.forget(request_ids)
        self._trials.forget(request_ids)

    def observe(self, spans: Sequence[Span], seconds: float, cost: WaveCost) -> None:
        """A wave of these spans took so many seconds on the slowest stage."""
        self._trials.observe(cost.a + spans_work(spans, cost), seconds)

    def plan(
        self, view: PipelineView, lanes: Sequence[Lane], cost: WaveCost
    ) -> tuple[float, Sequence[Lane], bool]:
        """The next wave: seconds of its work, the lanes in the order in which it should take them, and whether those
        who read what it computes are to be in it."""
        a, behind = cost.a / cost.b, self._stages - 1
        left = works(lanes, cost)
        ends = list(accumulate((*left, *works(view.behind, cost))))
        total = ends[-1]
        ready = sum(left)
        full = cost.work(lanes[0].next, self._max_tokens) / cost.b
        wave = total
        shortest = cost.work(lanes[0].next, self._min_tokens) / cost.b
        if behind:
            requests, work = self._arrivals.to_come(total, a / self._latest)
            mean = (sum(ends) + requests * (total + work / 2)) / (len(ends) + requests)
            if view.in_flight and view.slack > 0:
                shortest = max(shortest, *list(self._lengths)[-len(view.in_flight) :])
            wave = min(max(math.sqrt(a * mean / behind), shortest), full)
            if (share := self._trials.share) is not None:
                wave = math.sqrt(wave * share * full)
        self._latest = wave = min(max(wave, shortest), full)
        # Of more stages, waves are sized for who is to come, and would take far more of those behind than pays.
        rides = not behind and riding_pays(view, lanes, cost, self._max_tokens)
        if rides:
            ready = total
        waves = equal_waves(ready, wave)
        if waves <= self._stages:
            wave = min(full, max(ready / waves, shortest))
        order = self._passing.order(lanes, left, behind * (wave + a), wave)
        return wave * cost.b, order, rides

    def launched(self, lanes: Sequence[Lane], spans: Sequence[Span], cost: WaveCost) -> None:
        """A wave was launched, which has advanced ``lanes``."""
        carried = {span.request_id: cost.work(span.start, span.length) / cost.b for span in spans}
        wave = sum(carried.values())
        self._lengths.append(wave)
        probes = {lane.request_id for lane in lanes if lane.probe}
        if not probes or not probes >= carried.keys():
            self._arrivals.launched(cost.a / cost.b + wave, carried)
        self._passing.launched(lanes, carried, cost.a / cost.b + wave)
