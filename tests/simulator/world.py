"""All ranks of a replica in one process: production's turns of every thread on a virtual clock.

Everything random comes from one seed: prompts, pools, limits, planners, message delays, compute times, stalls, aborts,
and the order of events at one instant. WAVE and LOOP of a rank interleave at the granularity of turns.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.commands import Abort, Command, Submit
from wavepp_worker.runtime.protocol.events import Released
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.loop_turn import LeaderLoop, next_launch
from wavepp_worker.runtime.rank.wave_turn import LeaderWave
from wavepp_worker.runtime.trace.timeline import OFF

from tests.simulator.planners import draw_planner
from tests.simulator.rank import SimulatedRank, draw_windows, make_ranks

MOST_EVENTS = 40_000
CHECK_EVERY = 100
HYBRIDS = ("f", "fs", "fr", "fr", "rf", "fsr", "sr", "r", "")
"""Window kinds of the ranks in half of the worlds: full, sliding, recurrent; none for layers without a cache."""


class World:
    """One scenario. ``run`` raises AssertionError or one of the product's errors if a promise is broken."""

    def __init__(
        self,
        seed: int,
        *,
        ranks: int | None = None,
        admission: str = "wave",
        ownership: str = "lease",
        spare: int = 0,
        block: int | None = None,
    ) -> None:
        """``spare`` blocks are added to every pool; ``block`` tokens a block, drawn if not given."""
        self.draw = draw = random.Random(seed)
        self.now = 0.0
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=40)
        count = ranks or draw.choice((1, 2, 2, 3, 3, 4, 5, 8))
        self.block_size = block or draw.choice((1, 2, 4))
        chunk = draw.choice((2, 3, 8, 16))
        longest = draw.choice((6, 12, 20))
        limit = draw.choice((1, 2, 4, 8))
        windows = self._windows(count, longest, spare)
        self.ranks = make_ranks(
            draw, windows, self.block_size, chunk, admission, ownership, lambda: round(1e9 * self.now)
        )
        first = self.ranks[0].parts
        headroom = first.actions.headroom_blocks * self.block_size if ownership == "lease" else 0
        self.queue = AdmissionQueue(limit, lockstep=admission == "lockstep", headroom_tokens=headroom)
        self.planner = RoundPlanner(self.queue, leases=ownership == "lease")
        self.wave = LeaderWave(
            self.planner,
            first.actions,
            first.requests,
            first.reports,
            first.cache.unreserved_tokens,
            count,
        )
        self.plan_with(draw_planner(draw, count, chunk, self.block_size, limit))
        self.requests: dict[str, PrefillRequest] = {}
        self.unfinished: dict[str, None] = {}
        self.aborted: set[str] = set()
        self.launched: dict[int, tuple[Span, ...]] = {}
        self._delay = draw.choice((0.0001, 0.001, 0.02))
        self._compute = draw.choice((0.0001, 0.002, 0.01))
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._edges: dict[Any, float] = {}
        self._to_wave: list[Command | LaneProgress] = []
        self._to_loop: list[RequestsWaiting | LaneAdmitted | LaneAborted] = []
        self._ended: list[WaveDone] = []
        self._plan: Plan | None = None
        self._passed: set[str] = set()
        self._timer = self._launch_timer = -1.0
        self._quiet_until = -1.0
        self._loop_due = True
        self.round_delay = 0.0
        self.finished: list[float] = []
        self._script(longest)

    def plan_with(self, planner: Planner) -> None:
        """Let rank 0's LOOP thread plan so, from the start."""
        self.lanes = Lanes(Ring(2 * len(self.ranks)), planner, self.queue.limit)
        self.loop = LeaderLoop(self.lanes, self.ranks[0].parts.order, OFF)

    def run(self) -> int:
        """Until nothing is left to happen; returns how many events there were."""
        events = 0
        while True:
            self._settle()
            if not self._heap:
                break
            self.now, _, _, act, arguments = heapq.heappop(self._heap)
            act(*arguments)
            events += 1
            assert events < MOST_EVENTS, f"no end in sight; {self._stuck()}"
            if events % CHECK_EVERY == 0:
                self.check()
        self.wave.check()
        self.loop.check()
        assert not self.unfinished, f"hang: {self._stuck()}"
        for rank in self.ranks:
            rank.check()
            assert rank.outcomes == self.ranks[0].outcomes, f"rank {rank.number} applied other outcomes"
        return events

    def check(self) -> None:
        """Whatever holds at any moment."""
        self.wave.check()
        self.loop.check()
        for rank in self.ranks:
            rank.parts.cache.check()

    def _windows(self, ranks: int, longest: int, spare: int) -> list[list[WindowSpec]]:
        """What each rank's layers keep."""
        draw = self.draw
        hybrid = draw.random() < 0.5
        kinds = [draw.choice(HYBRIDS) if hybrid else "f" for _ in range(ranks)]
        return [draw_windows(draw, kind, self.block_size, longest, spare) for kind in kinds]

    def _script(self, longest: int) -> None:
        draw = self.draw
        prefixes = [[draw.randrange(50) for _ in range(longest)] for _ in range(2)]
        aborts, at = draw.choice((0.0, 0.2, 0.5)), 0.0
        for index in range(draw.randrange(2, 9)):
            length = draw.randrange(1, longest + 1)
            shared = draw.randrange(length + 1) if draw.random() < 0.9 else 0
            tokens = draw.choice(prefixes)[:shared] + [draw.randrange(50) for _ in range(length - shared)]
            packed = b"".join(token.to_bytes(4, "little") for token in tokens)
            request = PrefillRequest(request_id=f"r{index}", tokens=packed)
            at += draw.choice((0.0, 0.0, 0.001, 0.05))
            self._at(at, self._submit, request)
            if draw.random() < aborts:
                name = request.request_id
                when = at + draw.random() ** 3 * 0.3
                for _ in range(draw.choice((1, 1, 2))):
                    self._at(when, self._abort, name)
        for index in range(draw.choice((0, 0, 2, 6))):
            rank = draw.choice(self.ranks)
            tokens, name = draw.randrange(1, longest + 1), f"noise-{index}"
            self._at(draw.random() * at, self._noise, rank, name, tokens)

    def _at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (when, self.draw.random(), self._numbers, act, arguments))

    def _send(self, edge: Any, act: Callable[..., None], *arguments: Any) -> None:
        """A message: it takes a while, and stays in order with the others of its edge."""
        delay = self.draw.random() * self._delay
        if isinstance(edge, tuple) and edge[0] == "rounds":
            delay += self.round_delay
        arrival = max(self._edges.get(edge, 0.0), self.now) + delay
        self._edges[edge] = arrival
        self._at(arrival, act, *arguments)

    def _submit(self, request: PrefillRequest) -> None:
        self.requests[request.request_id] = request
        self.unfinished[request.request_id] = None
        self._wave_hears(Submit(request=request))

    def _abort(self, name: str) -> None:
        if name in self.unfinished:
            self.aborted.add(name)
        self._wave_hears(Abort(request_id=name))

    def _wave_hears(self, message: Command | LaneProgress) -> None:
        self._numbers += 1
        self._to_wave.append(message)

    def _loop_hears(self, message: RequestsWaiting | LaneAdmitted | LaneAborted) -> None:
        self._to_loop.append(message)
        self._loop_due = self._loop_due or not isinstance(message, RequestsWaiting)

    def _noise(self, rank: SimulatedRank, name: str, tokens: int) -> None:
        if rank.take_room(name, tokens):
            self._at(self.now + self.draw.random() * 0.1, lambda: rank.parts.cache.release(name) and None)

    def _settle(self) -> None:
        """Let every thread do what it can at this instant."""
        for _ in range(64):
            before = self._numbers
            self._lead_rounds()
            self._lead_waves()
            for rank in self.ranks[1:]:
                self._follow(rank)
            if self._numbers == before:
                return
        raise AssertionError("the ranks do not come to rest")

    def _lead_rounds(self) -> None:
        """A turn of rank 0's WAVE thread."""
        if self._plan is not None or (self.now < self._quiet_until and not self._to_wave):
            return
        messages, self._to_wave = self._to_wave, []
        effects = self.wave.turn(messages, self.now)
        for message in effects.to_loop:
            self._send("to LOOP", self._loop_hears, message)
        plan = effects.plan
        if plan is None:
            due = self._quiet_until = self.wave.due(self.now)
            if self.now < due < float("inf") and due != self._timer:
                self._timer = due
                self._at(due, lambda: None)
            return
        self._plan = plan
        self.trace.append((self.now, plan))
        self._passed = set(self.queue._waiting) if plan.prepare else set()
        for rank in self.ranks:
            self._send(("rounds", rank.number), self._vote, rank, plan)

    def _vote(self, rank: SimulatedRank, plan: Plan) -> None:
        if rank.executing and not rank.gate.parked and plan.hint and self.queue.lockstep:
            self._at(self.now + self._compute / 7, self._vote, rank, plan)
            return
        if rank.wave is None:
            self._counted(self.wave.vote())
            return
        vote = rank.wave.turn(plan, self.now).vote
        assert vote is not None
        self._send(("votes", rank.number), self._count, vote)

    def _count(self, vote: Vote) -> None:
        self._counted(self.wave.cast(vote))

    def _counted(self, tally: Tally | None) -> None:
        if tally is None:
            return
        plan = self._plan
        assert plan is not None
        for follower in self.ranks[1:]:
            self._send(("rounds", follower.number), self._apply, follower, tally)
        effects = self.wave.close(self.now)
        for message in effects.to_loop:
            if isinstance(message, LaneAdmitted):
                self._check_order(message, plan)
            self._send("to LOOP", self._loop_hears, message)
        for event in effects.events:
            if isinstance(event, Released):
                self.unfinished.pop(event.request_id, None)
        self._plan, self._quiet_until = None, -1.0
        # A parked LOOP goes on when the round resumes it.
        self._loop_due = True

    def _check_order(self, admitted: LaneAdmitted, plan: Plan) -> None:
        name = admitted.request_id
        assert admitted.end == self.requests[name].prompt_tokens
        assert 0 <= admitted.start < admitted.end
        arrivals = list(self.requests)
        # One that is being lowered may be passed by others while it holds its lease.
        prepared = any(admit.request_id == name for admit in plan.prepare)
        overtaken = [
            other
            for other in self._passed
            if prepared and arrivals.index(other) < arrivals.index(name) and other not in self.aborted
        ]
        assert not overtaken, f"{name} was admitted before {overtaken}"

    def _apply(self, rank: SimulatedRank, tally: Tally) -> None:
        assert rank.wave is not None
        effects = rank.wave.turn(tally, self.now)
        if effects.admitted:
            self._send(("to LOOP", rank.number), rank.admitted.extend, effects.admitted)

    def _tell(self, progress: Sequence[LaneProgress]) -> None:
        for each in progress:
            self._send("to WAVE", self._wave_hears, each)

    def _lead_waves(self) -> None:
        """A turn of rank 0's LOOP thread."""
        rank = self.ranks[0]
        if rank.executing:
            return
        ended, self._ended = self._ended, []
        self._tell(self.loop.complete(ended))
        if not (self._loop_due or ended) or rank.gate.parked:
            return
        messages, self._to_loop = self._to_loop, []
        left = rank.device.left()
        effects = self.loop.turn(messages, left)
        self._tell(effects.progress)
        self._loop_due = effects.busy
        if effects.wave is not None:
            assert len(self.lanes.ring) <= 2 * len(self.ranks)
            self.launched[effects.wave.wave_id] = effects.wave.spans
            self._begin(rank, effects.wave, self.now)
        elif (due := next_launch(left)) is not None:
            self._wake_loop_at(self.now + due + 1e-6)

    def _wake_loop_at(self, when: float) -> None:
        """One timer at a time: what an earlier one leaves to do, its turn asks for again."""
        if not self.now < self._launch_timer <= when:
            self._launch_timer = when
            self._at(when, self._wake_loop)

    def _wake_loop(self) -> None:
        self._loop_due = True

    def _follow(self, rank: SimulatedRank) -> None:
        """A turn of another rank's LOOP thread."""
        loop = rank.loop
        assert loop is not None
        if rank.executing or rank.gate.parked:
            return
        arrives = bool(rank.waves) and not loop.holds_wave
        eager = bool(rank.admitted or rank.busy) and self.draw.random() < rank.eager
        if not (arrives or eager or loop.holds_wave):
            return
        wave = rank.waves[0][0] if arrives else None
        admitted, rank.admitted = rank.admitted, []
        effects = loop.turn(wave, admitted, self.now)
        rank.busy = effects.busy
        if effects.wave is not None:
            _, ready = rank.waves.popleft()
            self._begin(rank, effects.wave, ready)

    def _begin(self, rank: SimulatedRank, header: WaveHeader, ready: float) -> None:
        wave_id, spans = header.wave_id, header.spans
        assert spans == self.launched[wave_id], f"rank {rank.number} runs another wave {wave_id} than rank 0"
        self.trace.append((self.now, rank.number, wave_id, spans))
        locals_ = rank.begin(header)
        seconds = self._seconds(rank)
        if not rank.behind:
            rank.executing = True
            self._at(self.now + seconds, self._computed, rank, header, locals_)
            return
        rank.end(header, locals_)
        self._pass_on(rank, header, rank.launch(seconds, ready, self.now))
        self._numbers += 1

    def _seconds(self, rank: SimulatedRank) -> float:
        """How long the next wave takes there; now and then a rank stalls."""
        stall = 30.0 if self.draw.random() < 0.01 else 1.0
        return self.draw.random() * self._compute * rank.speed * stall

    def _computed(self, rank: SimulatedRank, header: WaveHeader, locals_: Sequence[Any]) -> None:
        rank.executing = False
        rank.end(header, locals_)
        self._loop_due = True
        self._pass_on(rank, header, self.now)

    def _pass_on(self, rank: SimulatedRank, header: WaveHeader, ended: float) -> None:
        """To the next rank, which gets the activations once the device has them; or its end to rank 0."""
        if rank is self.ranks[-1]:
            self._at(ended, self._send, "done", self._complete, header)
        else:
            follower = self.ranks[rank.number + 1]
            self._send(("data", follower.number), follower.waves.append, (header, ended))

    def _complete(self, header: WaveHeader) -> None:
        self._ended.append(WaveDone(wave_id=header.wave_id))
        for span in header.spans:
            if span.last and span.request_id not in self.aborted:
                del self.unfinished[span.request_id]
                self.finished.append(self.now)

    def _stuck(self) -> str:
        held = {rank.number: rank.parts.cache.use() for rank in self.ranks}
        return f"{list(self.unfinished)} at {self.now:.3f}, {self.planner.waiting} wait, {held}"
