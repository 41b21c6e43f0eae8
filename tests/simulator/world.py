"""All ranks of a replica in one process: real admission, cache and scheduling code on a virtual clock.

Everything random comes from one seed: prompts, pools, limits, message delays, compute times, stalls, aborts, and
the order of events at one instant. WAVE and LOOP of a rank interleave at the granularity of messages.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import LaneAborted, LaneAdmitted, LaneAdvance, LaneStarted
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan, Vote
from wavepp_worker.runtime.protocol.waves import Span

from tests.simulator.rank import SimulatedRank, draw_windows, make_ranks

MOST_EVENTS = 20_000
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
        self.block = block or draw.choice((1, 2, 4))
        chunk = draw.choice((2, 3, 8, 16))
        longest = draw.choice((6, 12, 20))
        limit = draw.choice((1, 2, 4, 8))
        windows = self._windows(count, longest, spare)
        self.ranks = make_ranks(draw, windows, self.block, chunk, admission, ownership)
        headroom = self.ranks[0].state.config.headroom * self.block if ownership == "lease" else 0
        queue = AdmissionQueue(limit, lockstep=admission == "lockstep", headroom=headroom)
        self.planner = RoundPlanner(queue, leases=ownership == "lease")
        self.queue = queue
        self.lanes = Lanes(Ring(2 * count), GreedyPlanner(chunk), limit)
        self.requests: dict[str, PrefillRequest] = {}
        self.unfinished: dict[str, None] = {}
        self.aborted: set[str] = set()
        self.launched: dict[int, tuple[Span, ...]] = {}
        self._delay = draw.choice((0.0001, 0.001, 0.02))
        self._compute = draw.choice((0.0001, 0.002, 0.01))
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._edges: dict[Any, float] = {}
        self._commands: list[Callable[[], None]] = []
        self._plan: Plan | None = None
        self._votes: dict[int, Vote] = {}
        self._passed: set[str] = set()
        self._due = -1.0
        self._quiet_until = -1.0
        self._loop_due = True
        self.round_delay = 0.0
        self.finished: list[float] = []
        self._script(longest)

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
        self.planner.check()
        self.lanes.check()
        assert not self.unfinished, f"hang: {self._stuck()}"
        for rank in self.ranks:
            rank.check()
        return events

    def check(self) -> None:
        self.planner.check()
        self.lanes.check()
        for rank in self.ranks:
            rank.state.cache.check()

    def _windows(self, ranks: int, longest: int, spare: int) -> list[list[WindowSpec]]:
        """What each rank's layers keep."""
        draw = self.draw
        hybrid = draw.random() < 0.5
        kinds = [draw.choice(HYBRIDS) if hybrid else "f" for _ in range(ranks)]
        return [draw_windows(draw, kind, self.block, longest, spare) for kind in kinds]

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
            self._at(at, self._command, lambda request=request: self._submit(request))
            if draw.random() < aborts:
                name = request.request_id
                when = at + draw.random() ** 3 * 0.3
                for _ in range(draw.choice((1, 1, 2))):
                    self._at(when, self._command, lambda name=name: self._abort(name))
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

    def _command(self, act: Callable[[], None]) -> None:
        """Rank 0's WAVE thread takes commands between two rounds."""
        self._numbers += 1
        self._commands.append(act)

    def _submit(self, request: PrefillRequest) -> None:
        self.requests[request.request_id] = request
        self.unfinished[request.request_id] = None
        self.planner.submit(request, self.now)

    def _abort(self, name: str) -> None:
        if name in self.unfinished:
            self.aborted.add(name)
        if not self.planner.abort(name):
            self._send("to LOOP", self._lane, LaneAborted(name))

    def _noise(self, rank: SimulatedRank, name: str, tokens: int) -> None:
        if rank.take_room(name, tokens):
            self._at(self.now + self.draw.random() * 0.1, lambda: [rank.state.cache.release(name), None][1])

    def _settle(self) -> None:
        """Let every thread do what it can at this instant."""
        for _ in range(64):
            before = self._numbers
            self._wave()
            self._loop_of_rank_0()
            for rank in self.ranks[1:]:
                if (rank.waves or rank.admitted) and not rank.executing:
                    self._loop(rank)
            if self._numbers == before:
                return
        raise AssertionError("the ranks do not come to rest")

    def _wave(self) -> None:
        if self._plan is not None or (self.now < self._quiet_until and not self._commands):
            return
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        plan = self.planner.next_plan(self.now, self.ranks[0].state.cache.unreserved_tokens())
        if plan is None:
            due = self._quiet_until = self.planner.due(self.now)
            if self.now < due < float("inf") and due != self._due:
                self._due = due
                self._at(due, lambda: None)
            return
        self._plan, self._votes = plan, {}
        self.trace.append((self.now, plan))
        self._passed = set(self.queue._waiting) if plan.prepare else set()
        for rank in self.ranks:
            self._send(("rounds", rank.number), self._vote, rank, plan)

    def _vote(self, rank: SimulatedRank, plan: Plan) -> None:
        if rank.executing and rank.parking.parked is False and plan.hint and self.queue.lockstep:
            self._at(self.now + self._compute / 7, self._vote, rank, plan)
            return
        self._send(("votes", rank.number), self._count, rank, rank.actions.vote(plan))

    def _count(self, rank: SimulatedRank, vote: Vote) -> None:
        self._votes[rank.number] = vote
        if len(self._votes) < len(self.ranks):
            return
        plan, votes = self._plan, [self._votes[rank.number] for rank in self.ranks]
        assert plan is not None
        outcome = self.ranks[0].actions.apply(plan, votes)
        for follower in self.ranks[1:]:
            self._send(("rounds", follower.number), self._apply, follower, plan, votes, outcome)
        result = self.planner.apply(plan, outcome, self.now)
        for admission in result.admissions:
            name, length = admission.request_id, self.requests[admission.request_id].prompt_tokens
            assert 0 <= admission.endpoint < length
            arrivals = list(self.requests)
            # One that is being lowered may be passed by others while it holds its lease.
            prepared = any(admit.request_id == name for admit in plan.prepare)
            overtaken = [
                other
                for other in self._passed
                if prepared and arrivals.index(other) < arrivals.index(name) and other not in self.aborted
            ]
            assert not overtaken, f"{name} was admitted before {overtaken}"
            self._send("to LOOP", self._lane, LaneAdmitted(name, admission.endpoint, length))
        for name in result.released:
            self.unfinished.pop(name, None)
        self._plan, self._quiet_until = None, -1.0

    def _apply(self, rank: SimulatedRank, plan: Plan, votes: list[Vote], outcome: RoundOutcome) -> None:
        assert rank.actions.apply(plan, votes) == outcome
        rank.admitted.extend(admit.request_id for admit in outcome.admitted)

    def _lane(self, event: LaneAdmitted | LaneAborted) -> None:
        self._loop_due = True
        self._tell(self.lanes.take(event))

    def _tell(self, advances: list[LaneAdvance]) -> None:
        for advance in advances:
            self._send("to WAVE", self._command, lambda advance=advance: self.planner.advance(advance))

    def _loop_of_rank_0(self) -> None:
        rank = self.ranks[0]
        if not self._loop_due or rank.executing or rank.parking.parked:
            return
        spans = self.lanes.propose(self.planner.waiting)
        if not spans:
            name = self.lanes.next_leased()
            self._loop_due = name is not None
            if name is not None:
                self._materialise_first(name)
            return
        for span in spans:
            self._materialise_first(span.request_id)
        wave_id, advances = self.lanes.launch(spans)
        self._tell(advances)
        assert len(self.lanes.ring) <= 2 * len(self.ranks)
        self.launched[wave_id] = spans
        self._begin(rank, wave_id, spans)

    def _materialise_first(self, name: str) -> None:
        self.lanes.started(name)
        if self.ranks[0].materialise(name):
            self._tell([LaneStarted(name)])

    def _loop(self, rank: SimulatedRank) -> None:
        if rank.parking.parked:
            return
        if rank.waves and rank.ready(rank.waves[0][1]):
            wave_id, spans = rank.waves.popleft()
            for span in spans:
                rank.materialise(span.request_id)
            self._begin(rank, wave_id, spans)
        elif rank.admitted and self.draw.random() < rank.eager:
            rank.materialise(rank.admitted.popleft())

    def _begin(self, rank: SimulatedRank, wave_id: int, spans: tuple[Span, ...]) -> None:
        assert spans == self.launched[wave_id], f"rank {rank.number} runs another wave {wave_id} than rank 0"
        self.trace.append((self.now, rank.number, wave_id, spans))
        rank.begin(wave_id, spans)
        self._at(self.now + self._seconds(rank), self._end, rank, wave_id, spans)

    def _seconds(self, rank: SimulatedRank) -> float:
        """How long the next wave takes there; now and then a rank stalls."""
        stall = 30.0 if self.draw.random() < 0.01 else 1.0
        return self.draw.random() * self._compute * rank.speed * stall

    def _end(self, rank: SimulatedRank, wave_id: int, spans: tuple[Span, ...]) -> None:
        rank.end(spans)
        self._loop_due = True
        if rank is self.ranks[-1]:
            self._send("done", self._complete, wave_id, spans)
        else:
            follower = self.ranks[rank.number + 1]
            self._send(("data", follower.number), follower.waves.append, (wave_id, spans))

    def _complete(self, wave_id: int, spans: tuple[Span, ...]) -> None:
        self._loop_due = True
        self._tell(self.lanes.complete(wave_id))
        for span in spans:
            if span.last and span.request_id not in self.aborted:
                del self.unfinished[span.request_id]
                self.finished.append(self.now)

    def _stuck(self) -> str:
        held = {rank.number: rank.state.cache.use() for rank in self.ranks}
        return f"{list(self.unfinished)} at {self.now:.3f}, {self.planner.waiting} wait, {held}"
