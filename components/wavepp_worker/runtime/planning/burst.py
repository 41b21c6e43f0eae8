"""How long waves take while what there is may be all there will be: a burst that came to an idle pipeline. Pure.

Of ``P`` stages ``Q = P - 1`` lie behind the first; ``a`` is what a wave costs by itself. Work of ``u`` seconds, cut
into waves of ``w``, is done by the last stage after ``u + a * u / w + Q * (a + w)``: the first stage's time, and that
of the longest wave for each stage behind. It is least for

    ``w = sqrt(a * u / Q)``

where ``u`` is all work since the pipeline was idle: finer waves for what is left of it would gain nothing, as each
stage behind waits for the longest. Who reads what another is still to compute counts before it may run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavepp_worker.runtime.planning.equal_waves import equal_waves
from wavepp_worker.runtime.planning.lane_work import spans_work, works
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.riding import riding_pays
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span


class Burst:
    """Sizes waves for the least time until the last answer.

    Times are counted in tokens, of which each costs 1 without context: seconds change while their cost is learned.
    """

    def __init__(self, stages: int, max_tokens: int, min_tokens: int) -> None:
        self._behind = stages - 1
        self._max_tokens, self._min_tokens = max_tokens, min_tokens
        self._launched = 0.0

    def begin(self) -> None:
        """The pipeline is idle: what was launched before does not count any more."""
        self._launched = 0.0

    def plan(self, view: PipelineView, lanes: Sequence[Lane], cost: WaveCost) -> tuple[float, bool]:
        """Seconds of work of the next wave, and whether those who read what it computes are to be in it."""
        a, ready, behind = cost.a / cost.b, sum(works(lanes, cost)), sum(works(view.behind, cost))
        full = cost.work(lanes[0].next, self._max_tokens) / cost.b
        wave = period = self._launched + ready + behind
        if self._behind:
            wave = math.sqrt(a * period / self._behind)
        least = cost.work(lanes[0].next, self._min_tokens) / cost.b
        wave = min(max(wave, least), full)
        rides = bool(view.riding) if self._behind else riding_pays(view, lanes, cost, self._max_tokens)
        if rides:
            ready += behind
        # Waves of one length rather than a rest: what others read has to be in waves before they may run.
        waves = equal_waves(ready, wave)
        return min(ready / waves, full) * cost.b, rides

    def launched(self, spans: Sequence[Span], cost: WaveCost) -> None:
        """A wave was launched."""
        self._launched += spans_work(spans, cost) / cost.b
