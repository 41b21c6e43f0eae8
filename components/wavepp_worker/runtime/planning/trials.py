"""Which length of waves serves requests best that come without waiting for answers, by trial; for ``mpu``. Pure.

A length that follows from the load needs the load, and of few requests nobody can tell it. So every request that comes
also goes through simulated pipelines, each with waves of another length. All of them see the same requests at the same
times: which one answers sooner shows after some twenty of them, whatever the load is, and whether requests come one by
one, in bursts or in sessions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from wavepp_worker.runtime.planning.learned_cost import measurable
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.simulated_pipeline import SimulatedPipeline, SimulatedRequest
from wavepp_worker.runtime.planning.wave_cost import WaveCost

SHARES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
"""Lengths of waves that are tried, as shares of a full one."""
MIN_REQUESTS = 16
"""Requests from which on a trial tells something."""
WAVES_COUNTED = 100
"""Waves that tell how long waves take; each counts by its ratio, so that one that hung for minutes changes little."""


class WaveLengthTrials:
    """Finds the share of a full wave with which the requests that came would have been answered soonest.

    A configured cost model may be in any unit, as only its ratios matter elsewhere; the clock is in seconds. So what a
    unit takes is learned from the waves that were executed.
    """

    def __init__(self, stages: int, max_tokens: int) -> None:
        self._stages, self._max_tokens = stages, max_tokens
        self._log_unit, self._waves = 0.0, 0
        """Mean logarithm of the seconds that a unit of the cost model takes, and the waves that tell."""
        self._pipelines: list[SimulatedPipeline] = []
        self._requests = 0
        self.share: float | None = None
        """That share; None as long as too few came, or nobody knows how long waves take."""

    def observe(self, estimated: float, seconds: float) -> None:
        """A wave took so many seconds that was estimated to take ``estimated``, in the unit of the cost model.

        One that no clock can have measured tells nothing.
        """
        if not measurable(seconds):
            return
        self._waves = min(self._waves + 1, WAVES_COUNTED)
        self._log_unit += (math.log(seconds / estimated) - self._log_unit) / self._waves

    def see(self, came: Sequence[Lane], cost: WaveCost, now: float) -> None:
        """Account for requests that came since this was last called.

        They are judged by what they find: that is what there is on average. What a request brings itself takes a
        pipeline with shorter waves longer, and would count against it though nobody else may ever come.

        Args:
            cost: of waves, in the unit of ``observe``.
            now: seconds on a clock that never goes back.
        """
        if not self._waves:
            return
        if not self._pipelines:
            self._pipelines = [SimulatedPipeline(share, [now] * self._stages) for share in SHARES]
        unit = math.exp(self._log_unit)
        a = unit * cost.a
        self._run(a, now)
        self._requests += len(came)
        for lane in came:
            work = unit * cost.work(lane.next, lane.left)
            full = work / lane.left * self._max_tokens
            for pipeline in self._pipelines:
                pipeline.come(SimulatedRequest(work, full, now, lane.request_id), a)

    def go_on(self, cost: WaveCost, now: float) -> None:
        """Let pipelines that are behind catch up, some waves with each call; arguments as of ``see``."""
        if any(pipeline.behind for pipeline in self._pipelines):
            self._run(math.exp(self._log_unit) * cost.a, now)

    def _run(self, a: float, now: float) -> None:
        for pipeline in self._pipelines:
            pipeline.run(now, a)
        # One that is behind has not served yet what others have.
        if self._requests >= MIN_REQUESTS and not any(pipeline.behind for pipeline in self._pipelines):
            self.share = min(self._pipelines, key=lambda each: each.score(now, a)).share

    def forget(self, request_ids: Collection[str]) -> None:
        """These left without an answer: nobody serves what is left of them."""
        for pipeline in self._pipelines:
            pipeline.forget(request_ids)
