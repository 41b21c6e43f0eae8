"""A pipeline whose waves have one length, simulated on the requests that come; for ``mpu``. Pure."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain

from wavepp_worker.runtime.planning.equal_waves import equal_waves

DECAY_PER_ANSWER = 0.995
"""Weight of an answer, as a share of the next one's: about the last 200 count."""
FUTURE_REQUESTS = 20
"""Requests that are still to come, and are taken to wait for all the work that a pipeline has left."""
MAX_QUEUE = 256
"""Requests of a pipeline from which on it is too slow, and those that come are only counted."""
MAX_WAVES_AT_ONCE = 64
"""Waves that one call launches, so that it stays short; what is left, the next one does, at the times it is of."""


@dataclass(order=True)
class SimulatedRequest:
    """A request: the seconds of work that are left, those of a full wave of it, when it came, and its id."""

    work: float
    full: float = field(compare=False)
    since: float = field(compare=False)
    request_id: str = field(compare=False, default="")


@dataclass
class SimulatedPipeline:
    """Serves requests in waves of ``share`` of a full one; what makes no more waves than stages is cut into equal ones.

    The shortest go first, as in the real one as far as those can bear it who are passed.

    A pipeline may be *behind*: it is then as it was at an earlier time, when none of those came yet who came later.

    Attributes:
        free: when each stage will be free.
        work: seconds that are left of all that have come.
        behind: whether it has waves to launch that began in the past.
    """

    share: float
    free: list[float]
    work: float = 0.0
    behind: bool = False
    _queue: list[SimulatedRequest] = field(default_factory=list)
    _coming: deque[SimulatedRequest] = field(default_factory=deque)
    _later: float = 0.0
    _waited: float = 0.0
    _answers: float = 0.0

    def come(self, request: SimulatedRequest, a: float) -> None:
        """A request came, not before those that came before it; ``a`` is what a wave costs by itself."""
        if len(self._queue) + len(self._coming) >= MAX_QUEUE:
            self._answered(self.backlog(request.since, a))
            return
        self._coming.append(request)
        self._later += request.work
        self.work += request.work

    def forget(self, request_ids: Collection[str]) -> None:
        """What is left of these is done by nobody."""
        gone = set(request_ids)
        self._queue[:] = [request for request in self._queue if request.request_id not in gone]
        self._coming = deque(request for request in self._coming if request.request_id not in gone)
        self._later = sum(request.work for request in self._coming)
        self.work = self._later + sum(request.work for request in self._queue)

    def run(self, now: float, a: float) -> None:
        """Launch the waves that begin by ``now``, or as many of them as one call may."""
        queue, free, stages = self._queue, self.free, len(self.free)
        self.behind = False
        for _ in range(MAX_WAVES_AT_ONCE):
            later = self._admit()
            if not queue or free[0] > now:
                return
            head = queue[0]
            # The sum drifts, and is no less than a part of it.
            ready, wave = max(self.work - later, head.work), self.share * head.full
            until = min(now, self._coming[0].since) if self._coming else now
            waves = equal_waves(ready, wave)
            if waves <= stages:
                wave = min(head.full, ready / waves)
            # All waves of a long one at once, but for those that may be cut into equal ones.
            cut = stages if ready - head.work <= stages * wave else 0
            alike = max(1, min(int(head.work / wave) - cut, int((until - free[0]) / (a + wave)) + 1))
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
                self.work = max(later, self.work - alike * wave)
            else:
                self.work = later
        self._admit()
        self.behind = bool(queue) and free[0] <= now

    def score(self, now: float, a: float) -> float:
        """The less the better: seconds that answers took, in the mean, and the backlog, for each of those to come.

        Backlog times ``FUTURE_REQUESTS`` over the number of answers (1 if none).
        """
        return (self._waited + FUTURE_REQUESTS * self.backlog(now, a)) / max(self._answers, 1.0)

    def backlog(self, now: float, a: float) -> float:
        """Seconds until the first stage has done what there is."""
        left = self.free[0] - now
        if first := next(chain(self._queue, self._coming), None):
            left += self.work * (1 + a / (self.share * first.full))
        return max(0.0, left)

    def check(self) -> None:
        """Raise ValueError if it has more or other work than its requests."""
        requests = [*self._queue, *self._coming]
        left = sum(request.work for request in requests)
        if abs(left - self.work) > 1e-6 * max(1.0, left) or len(requests) > MAX_QUEUE:
            raise ValueError(
                f"{len(requests)} requests have {left} seconds of work left, taken for {self.work}"
            )

    def _admit(self) -> float:
        """Queue those who came before the first stage is free; returns the work of those who come later."""
        queue, coming, free = self._queue, self._coming, self.free
        while coming and (not queue or coming[0].since <= free[0]):
            if not queue:
                free[0] = max(free[0], coming[0].since)
            self._later -= coming[0].work
            insort(queue, coming.popleft())
        if not coming:
            self._later = 0.0
        return self._later

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
