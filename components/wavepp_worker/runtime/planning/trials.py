"""Which length of waves serves requests best that come without waiting for answers, by trial. Pure.

A length that follows from the load needs the load, and of few requests nobody can tell it. So every request that comes
also goes through imagined pipelines, each with waves of another length, first come first served. All of them see the
same requests at the same times: which one answers sooner shows after some ten of them, whatever the load is, and
whether requests come one by one, in bursts or in sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavepp_worker.runtime.planning.equal_waves import equal_waves
from wavepp_worker.runtime.planning.learned_cost import MAX_WAVE_SECONDS, MIN_WAVE_SECONDS
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost

SHARES = (0.2, 0.35, 0.5, 0.7, 1.0)
"""Lengths of waves that are tried, as shares of a full one."""
FEWEST = 16
"""Requests from which on a trial tells something."""
DECAY_PER_ANSWER = 0.995
"""Weight of an answer, as a share of the next one's: about the last 200 count."""
DELAYED_BY_BACKLOG = 20
"""Requests that are still to come, and are taken to wait for all the work that a pipeline has left."""
MOST_WAITING = 256
"""Requests of a pipeline from which on it is too slow, and those that come are only counted."""
DECAY_PER_WAVE = 0.99
"""Weight of a wave in how long waves take, as a share of the next one's."""


@dataclass
class _Waiting:
    """A request in an imagined pipeline: since when, the seconds of work that are left, those of a full wave of it."""

    since: float
    work: float
    full: float


@dataclass
class _Pipeline:
    """An imagined pipeline, whose waves take ``share`` of a full one, or less if all stages have some.

    Attributes:
        free: when each stage will be.
    """

    share: float
    free: list[float]
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _work: float = 0.0
    """What is left of all of them."""
    _waited: float = 0.0
    _answers: float = 0.0

    def come(self, request: _Waiting, a: float) -> None:
        """A request came; ``a`` is what a wave costs by itself."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(request)
            self._work += request.work
        else:
            self._answered(self._backlog(request.since, a))

    def run(self, now: float, a: float) -> None:
        """Launch what begins until now."""
        waiting, free, stages = self._waiting, self.free, len(self.free)
        while waiting and (start := max(free[0], waiting[0].since)) <= now:
            full, ready = waiting[0].full, 0.0
            for each in waiting:
                if each.since > start or ready > stages * full:
                    break
                ready += each.work
            wave = self.share * full
            waves = equal_waves(ready, wave)
            if waves <= stages:
                wave = min(full, ready / waves)
            ended, left = [], wave
            while waiting and waiting[0].since <= start and waiting[0].work <= left * (1 + 1e-9):
                ended.append(waiting.popleft())
                left -= ended[-1].work
            if waiting and waiting[0].since <= start and left > 0:
                waiting[0].work -= left
                left = 0.0
            self._work = self._work - wave + left if waiting else 0.0
            end = start
            for stage in range(stages):
                end = free[stage] = max(end, free[stage]) + a + wave - left
            for each in ended:
                self._answered(end - each.since)

    def seconds(self, now: float, a: float) -> float:
        """Mean time to an answer, with what those lose by it who are still to come; without an answer none."""
        return (self._waited + DELAYED_BY_BACKLOG * self._backlog(now, a)) / max(self._answers, 1.0)

    def _backlog(self, now: float, a: float) -> float:
        """Until the first stage has done what there is."""
        left = max(0.0, self.free[0] - now)
        if self._waiting:
            left += self._work * (1 + a / (self.share * self._waiting[0].full))
        return left

    def _answered(self, seconds: float) -> None:
        self._waited = self._waited * DECAY_PER_ANSWER + seconds
        self._answers = self._answers * DECAY_PER_ANSWER + 1


class Trials:
    """Finds the share of a full wave with which the requests that came would have been answered soonest."""

    def __init__(self, stages: int, max_tokens: int) -> None:
        self._stages, self._max_tokens = stages, max_tokens
        self._estimated = self._measured = 0.0
        self._pipelines: list[_Pipeline] = []
        self._came = 0
        self.share: float | None = None
        """That share; None as long as too few came, or nobody knows how long waves take."""

    def measured(self, estimated: float, seconds: float) -> None:
        """A wave took so many seconds that was estimated to take ``estimated``, in the unit of the cost model.

        One that no clock can have measured tells nothing.
        """
        if not MIN_WAVE_SECONDS <= seconds <= MAX_WAVE_SECONDS:
            return
        self._estimated = self._estimated * DECAY_PER_WAVE + estimated
        self._measured = self._measured * DECAY_PER_WAVE + seconds

    def see(self, came: Sequence[Lane], cost: WaveCost, now: float) -> None:
        """Account for requests that came; ``now`` is seconds on a clock that never goes back.

        What a request finds when it comes is what there is on average. What it brings itself takes a pipeline with
        shorter waves longer, and would count against it though nobody else may ever come.
        """
        if not self._measured:
            return
        if not self._pipelines:
            self._pipelines = [_Pipeline(share, [now] * self._stages) for share in SHARES]
        unit = self._measured / self._estimated
        a = unit * cost.a
        for pipeline in self._pipelines:
            pipeline.run(now, a)
        if self._came >= FEWEST:
            self.share = min(self._pipelines, key=lambda each: each.seconds(now, a)).share
        self._came += len(came)
        for lane in came:
            work = unit * cost.work(lane.next, lane.left)
            full = work / lane.left * self._max_tokens
            for pipeline in self._pipelines:
                pipeline.come(_Waiting(now, work, full), a)
