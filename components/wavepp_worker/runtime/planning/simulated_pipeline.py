"""A pipeline whose waves have one length, simulated on the requests that come; for ``mpu``. Pure."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from wavepp_worker.runtime.planning.equal_waves import equal_waves

DECAY_PER_ANSWER = 0.995
"""Weight of an answer, as a share of the next one's: about the last 200 count."""
FUTURE_REQUESTS = 20
"""Requests that are still to come, and are taken to wait for all the work that a pipeline has left."""
MAX_QUEUE = 256
"""Requests of a pipeline from which on it is too slow, and those that come are only counted."""
MAX_WAVES_AT_ONCE = 64
"""Waves that one call launches, so that it stays short; what is left, the next one does."""


@dataclass(order=True)
class SimulatedRequest:
    """A request: the seconds of work that are left, those of a full wave of it, and when it came."""

    work: float
    full: float = field(compare=False)
    since: float = field(compare=False)


@dataclass
class SimulatedPipeline:
    """Serves requests in waves of ``share`` of a full one; what makes no more waves than stages is cut into equal ones.

    The shortest go first, as in the real one as far as those can bear it who are passed.

    Attributes:
        free: when each stage will be.
        work: seconds that are left of all that wait.
    """

    share: float
    free: list[float]
    work: float = 0.0
    _queue: list[SimulatedRequest] = field(default_factory=list)
    _waited: float = 0.0
    _answers: float = 0.0

    def come(self, request: SimulatedRequest, a: float) -> None:
        """A request came; ``a`` is what a wave costs by itself."""
        if len(self._queue) >= MAX_QUEUE:
            self._answered(self.backlog(request.since, a))
            return
        if not self._queue:
            self.free[0] = max(self.free[0], request.since)
        insort(self._queue, request)
        self.work += request.work

    def run(self, now: float, a: float) -> None:
        """Launch the waves that begin by ``now``."""
        queue, free, stages = self._queue, self.free, len(self.free)
        for _ in range(MAX_WAVES_AT_ONCE):
            if not queue or free[0] > now:
                return
            head = queue[0]
            # The sum drifts, and is no less than a part of it.
            ready, wave = max(self.work, head.work), self.share * head.full
            waves = equal_waves(ready, wave)
            if waves <= stages:
                wave = min(head.full, ready / waves)
            # All waves of a long one at once, but for its last.
            alike = max(1, min(int(head.work / wave) - stages, int((now - free[0]) / (a + wave)) + 1))
            room, ended = alike * wave, 0
            while ended < len(queue) and queue[ended].work <= room * (1 + 1e-9):
                room = max(0.0, room - queue[ended].work)
                ended += 1
            idle = room if ended == len(queue) else 0.0
            end = self._pass(alike, a + wave - idle)
            for request in queue[:ended]:
                self._answered(end - request.since)
            del queue[:ended]
            if queue:
                queue[0].work -= room
                self.work = max(0.0, self.work - alike * wave)
            else:
                self.work = 0.0

    def score(self, now: float, a: float) -> float:
        """The less the better: seconds that answers took, in the mean, and the backlog, for each of those to come.

        Backlog times ``FUTURE_REQUESTS`` over the number of answers (1 if none).
        """
        return (self._waited + FUTURE_REQUESTS * self.backlog(now, a)) / max(self._answers, 1.0)

    def backlog(self, now: float, a: float) -> float:
        """Seconds until the first stage has done what there is."""
        left = max(0.0, self.free[0] - now)
        if self._queue:
            left += self.work * (1 + a / (self.share * self._queue[0].full))
        return left

    def check(self) -> None:
        """Raise ValueError if it has more or other work than its requests."""
        left = sum(request.work for request in self._queue)
        if abs(left - self.work) > 1e-6 * max(1.0, left) or len(self._queue) > MAX_QUEUE:
            raise ValueError(
                f"{len(self._queue)} requests have {left} seconds of work left, taken for {self.work}"
            )

    def _pass(self, waves: int, seconds: float) -> float:
        """So many waves of so many seconds pass all stages, one after the other; returns when the last is done."""
        begin = self.free[0]
        for stage, free in enumerate(self.free):
            begin = max(begin, free)
            self.free[stage] = begin + waves * seconds
            begin += seconds
        return self.free[-1]

    def _answered(self, seconds: float) -> None:
        self._waited = self._waited * DECAY_PER_ANSWER + seconds
        self._answers = self._answers * DECAY_PER_ANSWER + 1
