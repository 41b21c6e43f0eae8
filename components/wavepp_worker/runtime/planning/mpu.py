"""Our planner (``mpu``): waves of equal time instead of equal token budgets. Pure.

The paper's rules ask how many waves of a token budget the work makes. Here the cost model says how many
seconds a wave shall take, from six rules; ``Q = P - 1`` stages lie behind the first.

* *alone*: a request of ``u`` seconds cut into ``k`` waves is done after ``(k + Q) * (a + u/k)``, which is least
  for waves of ``sqrt(a * u / Q)``. Never cut finer; nor finer than the wave just ahead, behind which it would wait.
* *supply*: while a wave passes ``Q`` stages, the first stage needs ``Q`` more of other requests, and the
  pipeline as a whole one wave a stage. More waves than that cost ``a`` each and keep no further stage busy. Under a
  steady load (``Demand``), the most that was supplied counts: who was just answered is about to ask again. Otherwise
  there are half as many waves again: a burst pays ``a`` once, and those in its smaller waves are answered sooner.
  A wave that takes all there is and could take more is launched when rank 0's device is about to run dry.
* *even*: a request without others behind it is cut into equal times, not into full waves and a rest.
* *turns*: clients that are answered together ask again together. A wave that took all it had room for leaves others
  behind; mixing these with who comes next would make some of every group wait one wave longer, for ever. So who was
  left behind goes first and alone, unless all have room.
* *passing*: who would be cut, and would not end a wave sooner for it, lets those behind pass that end in what is
  left of the wave. Not where a steady load fills the waves: there, who passes only makes another wait.
* *same wait*: where the requests ask for ``x`` full waves, some take ``ceil(x)`` waves and some one less. With
  waves smaller by ``x / ceil(x)`` all take the same, and the slowest are answered sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavepp_worker.runtime.planning.demand import Demand
from wavepp_worker.runtime.planning.learned_cost import LearnedCost
from wavepp_worker.runtime.planning.packing import PackingPlanner, require_aligned
from wavepp_worker.runtime.planning.planner import LAUNCH_MARGIN_SECONDS, Lane, PipelineView
from wavepp_worker.runtime.planning.wave_budget import TimedRoom
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

SMALLEST_TURN = 0.2
"""Of a wave: who was left behind shares waves with newcomers rather than go alone in less."""
STRETCH = 1.3
"""How much longer than it should a wave may last before a request is cut once more, if there are as many requests as
stages, or were within the window: one was just answered and is about to ask again."""
BURST = 1.5
"""Waves a stage, where the load is not known to be steady and there are at most ``CROWD`` requests a stage."""
CROWD = 3
"""Requests a stage: so many are answered soonest by waves that cost little, one after the other."""
FEW = 0.04
"""Share of requests that may take one wave more than the others: less than a p95 would show."""
PRICE = 0.0075
"""Most throughput that is given for equal waits."""


class Mpu(PackingPlanner):
    """Sizes waves by estimated time; only the ratios ``a : b : c`` of the cost model matter."""

    def __init__(
        self,
        *,
        P: int,
        M: int,
        b_min: int,
        B: int,
        cost: WaveCost | None = None,
        max_batch: int = 128,
        deadline: int | None = None,
    ) -> None:
        """``cost`` is learned from executed waves unless given.

        ``deadline`` is how many waves may pass a lane over, by default ``R = 2P``.

        Raises:
            ConfigError: the numbers are not block-aligned with ``B <= b_min <= M``.
        """
        require_aligned(M, b_min, B)
        super().__init__(max_batch=max_batch, block=B, deadline=2 * P if deadline is None else deadline)
        self._P, self._M, self._b_min = P, M, b_min
        self._learned = LearnedCost() if cost is None else None
        self._cost = LearnedCost().cost if cost is None else cost
        self._head = ("", 0)
        self._left_behind: set[str] = set()
        self._demand = Demand()
        self.budget = b_min
        """Tokens the oldest lane could have taken in the latest decision."""

    def observe(self, spans: Sequence[Span], seconds: float) -> None:
        if self._learned is not None:
            tokens = sum(span.length for span in spans)
            context = sum(span.length * (span.start + (span.length + 1) / 2) for span in spans)
            self._cost = self._learned.observe(tokens, context, seconds)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        lanes = view.lanes[: self._max_batch]
        if not lanes:
            return ()
        head = lanes[0]
        if head.request_id != self._head[0]:
            self._head = (head.request_id, head.next)
        demand = self._demand
        demand.see(view)
        seconds = self._seconds(view, lanes)
        longest = seconds * STRETCH if demand.requests >= self._P else seconds
        self.budget = min(max(self._even(head, longest), self._b_min), self._M)
        room = self._cost.work(head.next, self.budget)
        if len(lanes) > 1:
            room = max(room, seconds)
        full = self._cost.work(head.next, self._M)
        plenty = demand.supply_now * self._cost.b >= full
        tokens = self._same_wait(full) if plenty else self._M
        wave = TimedRoom(self._cost, self._block, tokens, room, passing=not (plenty and demand.steady))
        spans = self._pack(lanes, wave)
        if plenty:
            spans += self._fragment(lanes, spans, wave)
        elif len(spans) < len(lanes):
            spans = self._before_newcomers(lanes, spans, SMALLEST_TURN * seconds)
        everything = len(spans) == len(view.lanes) and all(span.last for span in spans)
        if everything and room - wave.seconds < seconds and view.slack > LAUNCH_MARGIN_SECONDS:
            return ()
        return spans

    def accept(self, view: PipelineView, spans: Sequence[Span]) -> None:
        super().accept(view, spans)
        self._left_behind = {lane.request_id for lane in view.lanes if lane.left}
        self._demand.launched(spans)

    def _fragment(self, lanes: Sequence[Lane], spans: tuple[Span, ...], wave: TimedRoom) -> tuple[Span, ...]:
        """What is left of a wave goes to the first lane that it does not carry."""
        carried = {span.request_id for span in spans}
        for lane in lanes:
            if lane.request_id not in carried:
                length = wave.chunk(lane)
                return (lane.span(length),) if length else ()
        return ()

    def _same_wait(self, full: float) -> int:
        """Tokens of a full wave, of ``full`` seconds of work, so that all requests take as many waves."""
        waves = self._demand.tokens / self._M
        equal = math.ceil(waves - FEW)
        price = self._cost.a / (self._cost.a + full) * (equal / waves - 1)
        if price > PRICE:
            return self._M
        return min(self._M, -(-math.ceil(self._demand.tokens / equal) // self._block) * self._block)

    def _before_newcomers(
        self, lanes: Sequence[Lane], spans: tuple[Span, ...], least: float
    ) -> tuple[Span, ...]:
        """Only the spans of lanes that the last wave left behind, if that ends all of those and takes ``least``."""
        old = tuple(span for span in spans if span.request_id in self._left_behind)
        ended = sum(span.last for span in old) == sum(lane.request_id in self._left_behind for lane in lanes)
        if ended and sum(self._cost.work(span.start, span.length) for span in old) >= least:
            return old
        return spans

    def _seconds(self, view: PipelineView, lanes: Sequence[Lane]) -> float:
        """How long the next wave should occupy a stage."""
        cost, P, head = self._cost, self._P, lanes[0]
        burst = not self._demand.steady and self._demand.requests <= CROWD * P
        wanted = P * BURST if burst else P
        # ``cost.work``, written out: 128 calls are too slow to plan with.
        b, half = cost.b + cost.c / 2, cost.c / 2
        first = cost.work(head.next, head.left)
        total, longest = first, head.end
        for lane in lanes[1:]:
            total += (lane.end - lane.next) * (b + half * (lane.next + lane.end))
            longest = max(longest, lane.end)
            # Enough for full waves everywhere: what else there is does not matter.
            if total - first > wanted * (full := self._M * (b + cost.c * (longest + self._M))):
                return self._supplied(full)
        if P == 1:
            self._supplied(total)
            return total
        others = total - first
        for wave in view.in_flight:
            for span in wave:
                work = span.length * (b + half * (2 * span.start + span.length))
                total += work
                if span.request_id != head.request_id:
                    others += work
        begun = self._head[1]
        alone = math.sqrt(cost.a * cost.work(begun, head.end - begun) / (P - 1))
        if len(lanes) == 1 and view.in_flight and view.slack > 0:
            alone = max(alone, sum(cost.work(span.start, span.length) for span in view.in_flight[-1]))
        return max(alone, self._supplied(min(others / (P - 1), total / wanted)))

    def _supplied(self, seconds: float) -> float:
        """The most that was supplied, under a steady load; in tokens, as the cost is learned meanwhile."""
        return self._demand.supply(seconds / self._cost.b) * self._cost.b

    def _even(self, lane: Lane, seconds: float) -> int:
        """Tokens of the lane's next chunk, if all its chunks take the same and at most ``seconds``."""
        work = self._cost.work(lane.next, lane.left)
        cut = math.ceil(work / seconds) if seconds > 0 else lane.left
        chunks = max(cut, -(-lane.left // self._M))
        if chunks == 1:
            return lane.left
        # Rounded up to a block, so that rounding never leaves a rest that needs one more chunk.
        end = lane.next + self._cost.tokens_within(work / chunks, lane.next)
        return -(-end // self._block) * self._block - lane.next
