"""Maximum pipeline utilisation, our way (``mpu``): waves of equal time instead of equal token budgets. Pure.

The paper's rules (section 4.6, ``mpu_paper.py``) ask how many waves of a token budget the work makes. Here the cost
model says how many seconds a wave shall take. Where requests come without waiting for answers, that is what
``open_loop.py`` says. Under a *steady* load (``Demand``) who was just answered is about to ask again; until somebody
has done so, several requests that came to an idle pipeline may be all there will be (``burst.py``). From then on, eight
rules hold, each a method or an argument of that name. Of ``P`` stages ``Q = P - 1`` lie behind the first; ``a`` is what
a wave costs by itself (``WaveCost``).

* *alone*: a request of ``u`` seconds cut into ``k`` waves is done after ``(k + Q) * (a + u/k)``, which is least
  for waves of ``sqrt(a * u / Q)``. Never cut finer; nor finer than the wave just ahead, behind which it would wait.
* *supply*: while a wave passes ``Q`` stages, the first stage needs ``Q`` more of other requests, and the
  pipeline as a whole one wave a stage. More waves than that cost ``a`` each and keep no further stage busy. The most
  that was supplied lately counts, as who was just answered is missing; and so does what waits to be admitted. A wave
  that takes all there is and could take more is launched when rank 0's device is about to run dry, whatever the load.
* *gathering*: if it is small, it is held even then, for those who are about to ask again (``gathering.py``).
* *even*: a request without others behind it is cut into equal times, not into full waves and a rest.
* *whole*: nor is one cut at the end of a wave that others begin, if the wave is stretched little by taking it whole
  and enough requests are left for the other stages: a wave more would cost each of them ``a``.
* *turns*: clients that are answered together ask again together. A wave that took all it could leaves others
  behind; mixing these with who comes next would make some of every group wait one wave longer, for ever. So who was
  left behind goes first and alone, unless all fit, or each stage has a wave without them.
* *passing*: who would be cut, and would not end a wave sooner for it, lets those behind pass that end in what is
  left of the wave. Not where the load fills the waves: there, who passes only makes another wait.
* *same wait*: where the requests ask for ``x`` full waves, some take ``ceil(x)`` waves and some one less. With
  waves smaller by ``x / ceil(x)`` all take the same, and the slowest are answered sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavepp_worker.runtime.planning.burst import Burst
from wavepp_worker.runtime.planning.demand import Demand
from wavepp_worker.runtime.planning.gathering import Gathering
from wavepp_worker.runtime.planning.lane_work import spans_work, works
from wavepp_worker.runtime.planning.learned_cost import LearnedCost
from wavepp_worker.runtime.planning.open_loop import OpenLoop
from wavepp_worker.runtime.planning.packing import PackingPlanner, require_whole_blocks
from wavepp_worker.runtime.planning.planner import (
    LAUNCH_MARGIN_SECONDS,
    Lane,
    PipelineView,
)
from wavepp_worker.runtime.planning.riding import riding_pays
from wavepp_worker.runtime.planning.wave_budget import TimeBudget
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

MIN_TURN_SHARE = 0.2
"""Share of a wave's seconds: who was left behind shares waves with newcomers rather than go alone in less."""
MAX_HOLD_SHARE, MAX_HOLD_SECONDS = 0.25, 0.005
"""Of what a wave costs by itself, the most for which an idle pipeline's first wave is held; and in seconds."""
MAX_STRETCH = 1.3
"""Seconds a wave may last, per second it should, before a request is cut once more, if there are as many requests as
stages, or were within the window: one was just answered and is about to ask again. Likewise one with several."""
MAX_SHARE_WAITING_ONE_MORE_WAVE = 0.04
"""Share of requests that may take one wave more than the others: less than a p95 would show."""
MAX_THROUGHPUT_SHARE_FOR_SAME_WAIT = 0.0075
"""Share of the throughput, the most that is given for equal waits."""


class Mpu(PackingPlanner):
    """Sizes waves by estimated time; only the ratios ``a : b : c`` of the cost model matter."""

    def __init__(
        self,
        *,
        stages: int,
        max_num_batched_tokens: int,
        min_num_batched_tokens: int,
        block_size: int,
        cost: WaveCost | None = None,
        max_num_seqs: int = 128,
    ) -> None:
        """``cost`` is learned from executed waves unless given; ``max_num_seqs`` lanes share waves.

        Raises:
            ConfigError: the most or fewest tokens of a wave are not whole blocks, or the fewest exceed the most.
        """
        require_whole_blocks(max_num_batched_tokens, min_num_batched_tokens, block_size)
        # A lane may be passed over by as many waves as the ring holds.
        super().__init__(max_num_seqs=max_num_seqs, block_size=block_size, deadline=2 * stages)
        self._stages = stages
        self._max_tokens, self._min_tokens = max_num_batched_tokens, min_num_batched_tokens
        self._learned = LearnedCost() if cost is None else None
        self._cost = LearnedCost().cost if cost is None else cost
        self._demand = Demand()
        self._open_loop = OpenLoop(stages, max_num_batched_tokens, min_num_batched_tokens)
        self._burst = Burst(stages, max_num_batched_tokens, min_num_batched_tokens)
        self._gathering = Gathering(stages, max_num_batched_tokens)
        self._supply_now = 0.0
        """Tokens of a wave that the requests supplied in the latest decision."""
        self._rides = False
        """Whether those who read what the wave of the latest decision computes are to be in it."""
        self._oldest, self._oldest_begun = "", 0
        """The oldest lane's request, and the token where it began to be the oldest."""
        self._left_behind: set[str] = set()
        """Requests in lanes when the last wave was launched that still have tokens."""
        self.budget = min_num_batched_tokens
        """Tokens the oldest lane could have taken in the latest decision."""

    def observe(self, spans: Sequence[Span], seconds: float) -> None:
        if self._learned is not None:
            tokens = sum(span.length for span in spans)
            context = sum(span.length * (span.start + (span.length + 1) / 2) for span in spans)
            self._cost = self._learned.observe(tokens, context, seconds)
        self._open_loop.observe(spans, seconds, self._cost)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        lanes, demand = view.lanes[: self._max_num_seqs], self._demand
        came = demand.see(view)
        if demand.gone:
            self._open_loop.forget(demand.gone)
        if not view.in_flight:
            self._burst.begin()
        if not lanes:
            return ()
        head, self._rides = lanes[0], False
        # A request that stands before where it began is another one that has taken over the name.
        if head.request_id != self._oldest or head.next < self._oldest_begun:
            self._oldest, self._oldest_begun = head.request_id, head.next
        if came:
            present = len(view.lanes) + len(view.behind)
            idle = view.slack <= 0 and len(came) == present
            asked = [lane for lane in came if not lane.probe]
            self._open_loop.see(asked, self._cost, idle=idle, now=None if demand.steady else view.now)
        elif view.now is not None and not demand.steady:
            self._open_loop.go_on(self._cost, view.now)
        burst = demand.steady and demand.burst
        if view.admitting and (self._holds(view, burst) or (burst and view.slack > LAUNCH_MARGIN_SECONDS)):
            # How long waves should take follows from all there is, which is known in a moment.
            return ()
        if burst and (len(lanes) > 1 or view.behind):
            spans, room = self._burst_wave(view, lanes)
        elif demand.steady:
            spans, room = self._steady_wave(view, lanes)
        else:
            spans, room = self._open_wave(view, lanes)
        # By *supply*, whoever comes before the device runs dry may share the wave.
        there_are = len(view.lanes) + (len(view.behind) if self._rides else 0)
        everything = len(spans) == there_are and all(span.last for span in spans)
        if everything and room and view.slack > LAUNCH_MARGIN_SECONDS:
            return ()
        gathers = everything and room and demand.steady and not burst
        if gathers and self._gathering.holds(view, spans, demand, self._cost):
            return ()
        return spans

    def _holds(self, view: PipelineView, burst: bool) -> bool:
        """Whether what could be launched into the empty ring is worth holding a little longer.

        One wave more than it takes costs ``a`` at every stage. A single stage takes all there is in one wave: that had
        better be all, whatever is known of the load.
        """
        longest = min(MAX_HOLD_SHARE * self._cost.a, MAX_HOLD_SECONDS)
        return (burst or self._stages == 1) and not view.in_flight and view.held < longest

    def _open_wave(self, view: PipelineView, lanes: Sequence[Lane]) -> tuple[tuple[Span, ...], bool]:
        """The next wave where requests come without waiting for answers, and whether it could take more."""
        seconds, order, self._rides = self._open_loop.plan(view, lanes, self._cost)
        return self._wave(view, seconds, lanes, order)

    def _burst_wave(self, view: PipelineView, lanes: Sequence[Lane]) -> tuple[tuple[Span, ...], bool]:
        """The next wave where all there is may be all there will be, and whether it could take more."""
        seconds, self._rides = self._burst.plan(view, lanes, self._cost)
        # Rounded up to a block, so that rounding never leaves a rest that needs one more wave.
        seconds += self._cost.work(lanes[0].next, self._block_size - 1)
        return self._wave(view, seconds, lanes, lanes)

    def _wave(
        self, view: PipelineView, seconds: float, lanes: Sequence[Lane], order: Sequence[Lane]
    ) -> tuple[tuple[Span, ...], bool]:
        """A wave of ``seconds`` that takes lanes in this ``order``, and whether it could take more."""
        self._supply_now = 0.0
        fits = self._cost.tokens_within(seconds, lanes[0].next)
        self.budget = min(max(fits, self._min_tokens), self._max_tokens)
        left = TimeBudget(self._cost, self._block_size, self._max_tokens, seconds, passing=False)
        spans = self._pack(order, left)
        if self._rides:
            spans = self._add_riders(view, spans, left)
        return spans, left.seconds > 0

    def _steady_wave(self, view: PipelineView, lanes: Sequence[Lane]) -> tuple[tuple[Span, ...], bool]:
        """The next wave under a steady load, and whether it could take more."""
        head = lanes[0]
        seconds = self._seconds(view, lanes)
        self.budget = self._even(head, seconds)
        allowed = self._cost.work(head.next, self.budget)
        if len(lanes) > 1 or self._rides:
            allowed = max(allowed, seconds)
        full = self._cost.work(head.next, self._max_tokens)
        plenty = self._supply_now * self._cost.b >= full
        if not plenty and len(lanes) > 1:
            allowed = self._whole(lanes, allowed)
        tokens = self._same_wait(full) if plenty else self._max_tokens
        left = TimeBudget(self._cost, self._block_size, tokens, allowed, passing=not plenty)
        spans = self._pack(lanes, left)
        if not plenty and len(spans) < len(lanes) and len(view.in_flight) < self._stages:
            spans = self._turns(lanes, spans, MIN_TURN_SHARE * seconds)
        if self._rides:
            spans = self._add_riders(view, spans, left)
        # A single stage has no others to keep busy: whatever there is makes a wave, and more could.
        return spans, self._stages == 1 or allowed - left.seconds < seconds

    def _whole(self, lanes: Sequence[Lane], seconds: float) -> float:
        """Seconds of a wave that ends with a request rather than within it, if all stages have as many.

        As given if not.
        """
        total = 0.0
        for count, lane in enumerate(lanes, 1):
            total += self._cost.work(lane.next, lane.left)
            if total > seconds:
                fits = count * self._stages <= self._demand.requests and total <= MAX_STRETCH * seconds
                return total if fits else seconds
        return seconds

    def accept(self, view: PipelineView, spans: Sequence[Span]) -> None:
        super().accept(view, spans)
        self._left_behind = {lane.request_id for lane in view.lanes if lane.left}
        self._left_behind.update(span.request_id for span in spans if not span.last)
        self._demand.launched(spans, self._supply_now)
        self._open_loop.launched(view.lanes, spans, self._cost)
        self._burst.launched(spans, self._cost)
        self._gathering.launched()

    def _seconds(self, view: PipelineView, lanes: Sequence[Lane]) -> float:
        """How long the next wave should occupy a stage: by *supply*, and while that makes no full waves, by *alone*."""
        now, full = self._supply(view, lanes)
        # Kept in tokens, as the cost is learned meanwhile.
        self._supply_now = now / self._cost.b
        if self._stages == 1 and not full:
            return now
        supplied = self._demand.supply(self._supply_now) * self._cost.b
        return supplied if full else max(self._alone(view, lanes), supplied)

    def _alone(self, view: PipelineView, lanes: Sequence[Lane]) -> float:
        """Seconds of the waves in which the oldest request, if it were alone, would be done first."""
        cost, begun = self._cost, self._oldest_begun
        seconds = math.sqrt(cost.a * cost.work(begun, lanes[0].end - begun) / (self._stages - 1))
        if len(lanes) == 1 and view.in_flight and view.slack > 0:
            return max(seconds, spans_work(view.in_flight[-1], cost))
        return seconds

    def _supply(self, view: PipelineView, lanes: Sequence[Lane]) -> tuple[float, bool]:
        """Seconds of a wave that the requests supply now, and whether all stages can have full waves."""
        cost, stages, head = self._cost, self._stages, lanes[0]
        # ``cost.work``, written out: 128 calls are too slow to plan with.
        b, half = cost.b + cost.c / 2, cost.c / 2
        first = cost.work(head.next, head.left)
        # Where they wait for room, smaller waves would leave even less of it, as fewer requests are in flight at once.
        total, longest = first + cost.b * view.admitting_tokens, head.end
        for lane in lanes[1:]:
            total += (lane.end - lane.next) * (b + half * (lane.next + lane.end))
            longest = max(longest, lane.end)
            # Enough for full waves everywhere: what else there is does not matter.
            full = self._max_tokens * (b + cost.c * (longest + self._max_tokens))
            if total - first > stages * full:
                return full, True
        if stages == 1:
            # No other stage to keep busy: whatever there is makes a wave.
            self._rides = riding_pays(view, lanes, cost, self._max_tokens)
            behind = sum(works(view.behind, cost)) if self._rides else 0.0
            return total + cost.b * behind, False
        others = total - first
        for wave in view.in_flight:
            for span in wave:
                work = span.length * (b + half * (2 * span.start + span.length))
                total += work
                if span.request_id != head.request_id:
                    others += work
        return min(others / (stages - 1), total / stages), False

    def _even(self, lane: Lane, seconds: float) -> int:
        """Tokens of the lane's next chunk, if all its chunks take the same and about ``seconds`` at most."""
        if self._demand.requests >= self._stages:
            seconds *= MAX_STRETCH
        work = self._cost.work(lane.next, lane.left)
        cut = math.ceil(work / seconds) if seconds > 0 else lane.left
        chunks = max(cut, -(-lane.left // self._max_tokens))
        tokens = lane.left
        if chunks > 1:
            # Rounded up to a block, so that rounding never leaves a rest that needs one more chunk.
            end = lane.next + self._cost.tokens_within(work / chunks, lane.next)
            tokens = -(-end // self._block_size) * self._block_size - lane.next
        return min(max(tokens, self._min_tokens), self._max_tokens)

    def _turns(self, lanes: Sequence[Lane], spans: tuple[Span, ...], least: float) -> tuple[Span, ...]:
        """Only the spans of lanes that the last wave left behind, if that ends all of those and takes ``least``."""
        old = tuple(span for span in spans if span.request_id in self._left_behind)
        ended = sum(span.last for span in old) == sum(lane.request_id in self._left_behind for lane in lanes)
        if ended and spans_work(old, self._cost) >= least:
            return old
        return spans

    def _same_wait(self, full: float) -> int:
        """Tokens of a full wave, of ``full`` seconds of work, so that all requests take as many waves."""
        waves = self._demand.tokens / self._max_tokens
        # Few tokens at a deep context can take as long as a full wave, and are one all the same.
        equal = max(1, math.ceil(waves - MAX_SHARE_WAITING_ONE_MORE_WAVE))
        given = self._cost.a / (self._cost.a + full) * (equal / waves - 1)
        if given > MAX_THROUGHPUT_SHARE_FOR_SAME_WAIT:
            return self._max_tokens
        return min(
            self._max_tokens,
            -(-math.ceil(self._demand.tokens / equal) // self._block_size) * self._block_size,
        )
