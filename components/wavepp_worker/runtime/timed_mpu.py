"""Our planner (``mpu``): waves of equal time instead of equal token budgets. Pure.

The paper's rules ask how many waves of a token budget the work makes. Here the cost model says how many
seconds a wave shall take, from four rules; ``Q = P - 1`` stages lie behind the first.

* *alone*: a request of ``u`` seconds cut into ``k`` waves is done after ``(k + Q) * (a + u/k)``, which is least
  for waves of ``sqrt(a * u / Q)``. Never cut finer.
* *supply*: while a wave passes ``Q`` stages, the first stage needs ``Q`` more of other requests, and the
  pipeline as a whole 1.5 waves a stage, so that it stays full when requests end and begin in lumps.
* *ring*: a wave much longer than those behind it lets them fill the ring and then starves the first stage; so it
  lasts no longer than the next ``R - 1`` waves take for one stage, shared by ``Q``.
* *even*: a request is cut into equal times, not into full waves and a rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.chunk_cost import ChunkCost
from wavepp_worker.runtime.packing import PackingPlanner
from wavepp_worker.runtime.planner import Lane, PipelineView
from wavepp_worker.runtime.protocol import Span

WAVES_PER_STAGE = 1.5
"""Waves the work in the pipeline shall make, per stage, before waves grow."""
SMALLEST_FRAGMENT = 0.5
"""Of a wave: below this share no lane is cut to fill the room others left."""


class TimedRoom:
    """Seconds of one stage and a limit on tokens; chunks below ``smallest`` seconds are fragments."""

    def __init__(self, cost: ChunkCost, tokens: int, seconds: float, smallest: float) -> None:
        self._cost = cost
        self._tokens = tokens
        self._seconds = seconds
        self._smallest = smallest

    def fit(self, start: int) -> int:
        return min(self._tokens, self._cost.tokens_within(self._seconds, start))

    def fragment(self, start: int, length: int) -> bool:
        return self._cost.work(start, length) < self._smallest

    def take(self, start: int, length: int) -> None:
        self._tokens -= length
        self._seconds -= self._cost.work(start, length)


class TimedMpu(PackingPlanner):
    """Sizes waves by estimated time; only the ratios ``a : b : c`` of the cost model matter."""

    def __init__(
        self,
        *,
        P: int,
        M: int,
        b_min: int,
        B: int,
        cost: ChunkCost,
        max_batch: int = 128,
        deadline: int | None = None,
    ) -> None:
        """``deadline`` is how many waves may pass a lane over, by default ``R = 2P``.

        Raises:
            ConfigError: the numbers are not block-aligned with ``B <= b_min <= M``.
        """
        if not 1 <= B <= b_min <= M or M % B or b_min % B:
            raise ConfigError(
                f"wave budgets need block <= b_min <= M, both multiples of the block; got block {B}, b_min"
                f" {b_min}, M {M}. Change chunk (M) or min_chunk (b_min) to multiples of block"
            )
        self._R = 2 * P
        super().__init__(max_batch=max_batch, block=B, deadline=self._R if deadline is None else deadline)
        self._P, self._M, self._b_min, self._cost = P, M, b_min, cost
        self._head = ("", 0)
        self.budget = b_min
        """Tokens the oldest lane could have taken in the latest decision."""

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        lanes = view.lanes[: self._max_batch]
        if not lanes:
            return ()
        head = lanes[0]
        if head.request_id != self._head[0]:
            self._head = (head.request_id, head.next)
        seconds = self._seconds(view, lanes)
        budget = self._even(head, seconds)
        self.budget = min(max(budget, self._b_min), self._M)
        room = max(self._cost.work(head.next, self.budget), seconds if budget >= head.left else 0.0)
        return self._pack(lanes, TimedRoom(self._cost, self._M, room, SMALLEST_FRAGMENT * seconds))

    def _seconds(self, view: PipelineView, lanes: Sequence[Lane]) -> float:
        """How long the next wave should occupy a stage."""
        cost, Q, head = self._cost, self._P - 1, lanes[0]
        # ``cost.work``, written out: 128 calls are too slow to plan with.
        b, half = cost.b + cost.c / 2, cost.c / 2
        total = sum([(lane.end - lane.next) * (b + half * (lane.next + lane.end)) for lane in lanes])
        if not Q:
            return total
        others = total - cost.work(head.next, head.left)
        for wave in view.in_flight:
            for span in wave:
                work = span.length * (b + half * (2 * span.start + span.length))
                total += work
                if span.request_id != head.request_id:
                    others += work
        begun = self._head[1]
        alone = math.sqrt(cost.a * cost.work(begun, head.end - begun) / Q)
        supply = min(others / Q, total / (WAVES_PER_STAGE * self._P))
        return min(max(alone, supply), self._ring_limit(lanes))

    def _ring_limit(self, lanes: Sequence[Lane]) -> float:
        """The seconds of the ``R - 1`` waves behind the oldest lane, shared by the stages a wave still passes."""
        wanted, work, c = (self._R - 1) * self._M, 0.0, self._cost.c
        b = self._cost.b + c / 2
        for lane in lanes[1:]:
            tokens = min(wanted, lane.end - lane.next)
            work += tokens * (b + c * (lane.next + tokens / 2))
            wanted -= tokens
            if not wanted:
                return work / (self._P - 1)
        return math.inf

    def _even(self, lane: Lane, seconds: float) -> int:
        """Tokens of the lane's next chunk, if all its chunks take the same and at most ``seconds``."""
        work = self._cost.work(lane.next, lane.left)
        chunks = max(math.ceil(work / seconds) if seconds > 0 else lane.left, -(-lane.left // self._M))
        if chunks == 1:
            return lane.left
        # Rounded up to a block, so that rounding never leaves a rest that needs one more chunk.
        end = lane.next + self._cost.tokens_within(work / chunks, lane.next)
        return -(-end // self._block) * self._block - lane.next
