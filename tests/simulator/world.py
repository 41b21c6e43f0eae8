"""All ranks of a replica in one process: production's turns of every thread on a virtual clock.

Everything random comes from one seed: prompts, pools, limits, planners, message delays, compute times, stalls, aborts,
and the order of events at one instant. WAVE and LOOP of a rank interleave at the granularity of turns.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.admission.demand import Demand
from wavepp_worker.runtime.admission.order import PrefixOrder
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.commands import Abort, Clear, Command, Submit
from wavepp_worker.runtime.protocol.events import Event, Finished
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.loop_turn import WAVES_ON_DEVICE, LeaderLoop
from wavepp_worker.runtime.rank.wave_turn import LeaderWave
from wavepp_worker.runtime.trace.timeline import OFF

from tests.simulator.client import SimulatedClient
from tests.simulator.planners import RidingPlanner, draw_planner
from tests.simulator.rank import SimulatedRank, key_maker, make_ranks
from tests.simulator.script import Script, draw_script
from tests.simulator.setting import (
    CROWDED,
    RIDING,
    SLOW,
    Setting,
    draw_crowded_setting,
    draw_riding_setting,
    draw_setting,
    draw_slow_setting,
)

MOST_EVENTS = 40_000
CHECK_EVERY = 150
RIDERS = 0.7
"""Share of the worlds without windows and states in which readers may share their writer's wave."""
NO_CLEARS = 0.8
"""Share of the worlds in which nobody clears the caches."""
FIRST = SampledToken(token=0)


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
        # Of a seed of its own: what else is drawn stays what it was.
        self._rides = random.Random(f"riders {seed}")
        self.setting = setting = self._setting(ranks, block, spare)
        self.block_size = setting.block_size
        self.ranks = make_ranks(draw, setting, admission, ownership, lambda: round(1e9 * self.now))
        self._keys = key_maker(setting.block_size)
        self.client = SimulatedClient(self.ranks, setting.block_size)
        first = self.ranks[0].parts
        headroom = first.actions.headroom_blocks * setting.block_size if ownership == "lease" else 0
        self.leases = ownership == "lease"
        self.queue = AdmissionQueue(
            setting.limit,
            lockstep=admission == "lockstep",
            headroom_tokens=headroom,
            block_size=setting.block_size if self.leases and admission == "wave" else 0,
        )
        # Of a seed of its own: what else is drawn stays what it was.
        self._own = own = random.Random(f"order {seed}")
        self.priorities = own.choice(((0,), (0,), (0, 0, 0, 1, -1)))
        self.computed_by_others: Counter[str] = Counter()
        in_use = self.leases and admission == "wave"
        self.order_by(own.choice((None, 0, setting.longest, 3 * setting.longest, 1000)) if in_use else None)
        self.planner = RoundPlanner(self.queue, leases=self.leases)
        self.wave = LeaderWave(
            self.planner,
            first.actions,
            first.requests,
            first.reports,
            first.cache,
            len(self.ranks),
            setting.beat,
        )
        kinds = {spec.kind for rank in self.ranks for spec in rank.specs}
        self.riders = kinds <= {"full"} and (setting.riding or self._rides.random() < RIDERS)
        planner = draw_planner(draw, len(self.ranks), setting.chunk, setting.block_size, setting.limit)
        if (
            self.riders
            and (isinstance(planner, GreedyPlanner) or setting.riding)
            and self._rides.random() < 0.8
        ):
            planner = RidingPlanner(setting.chunk, setting.limit)
        self.plan_with(planner)
        self.launched: dict[int, tuple[Span, ...]] = {}
        self._delay = setting.delay
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = self._beats_due = 0
        self._edges: dict[Any, float] = {}
        self._to_wave: list[Command | LaneProgress] = []
        self._to_loop: list[RequestsWaiting | LaneAdmitted | LaneAborted] = []
        self._ended: list[WaveDone] = []
        self._plan: Plan | None = None
        self._pressure = False
        self._passed: set[str] = set()
        self._held_back: set[str] = set()
        self._timer = self._launch_timer = -1.0
        self._quiet_until = -1.0
        self._loop_due = True
        script = self._script()
        self._play(script)
        for number, at in enumerate(self._clears(own, script)):
            self._at(at, self._clear, number)
        for rank in self.ranks if math.isfinite(setting.beat) else ():
            self._beat(rank)

    def plan_with(self, planner: Planner) -> None:
        """Let rank 0's LOOP thread plan so, from the start."""
        self.lanes = Lanes(Ring(2 * len(self.ranks)), planner, self.queue.limit, riders=self.riders)
        self.loop = LeaderLoop(self.lanes, self.ranks[0].parts.order, OFF)

    def order_by(self, most_passed: int | None) -> None:
        """Let rank 0 admit so, from the start: first come, first served if no bound is given."""
        self.most_passed = most_passed or 0
        self.queue.order = (
            None
            if most_passed is None
            else PrefixOrder(most_passed, self.block_size, len(self.ranks), self.setting.chunk)
        )
        self._seen_held_back: set[int] = set()
        if self.queue.order is not None:
            self._watch_who_is_held_back(self.queue.order)

    def _watch_who_is_held_back(self, order: PrefixOrder) -> None:
        """Who waits until a popular prefix is computed for many would wait whatever goes first."""
        held_back = order._held_back

        def watched(entry: Waiting, demand: Demand) -> bool:
            held = held_back(entry, demand)
            if held:
                self._seen_held_back.add(id(entry))
            return held

        order._held_back = watched  # type: ignore[method-assign]

    def run(self) -> int:
        """Until nothing is left to happen; returns how many events there were."""
        events = 0
        while True:
            self._settle()
            if not self._heap:
                break
            self.now, chance, _, act, arguments = heapq.heappop(self._heap)
            act(*arguments)
            if chance < 0.1:
                self.client.listen(self.draw.choice(self.ranks), self.now)
            events += 1
            assert events < MOST_EVENTS, f"no end in sight; {self._stuck()}"
            if events % CHECK_EVERY == 0:
                self.check()
        self.wave.check()
        self.loop.check()
        assert not self.client.live, f"hang: {self._stuck()}"
        self.client.check(self.now)
        first = self.ranks[0]
        for rank in self.ranks:
            rank.check()
            assert rank.watch.outcomes == first.watch.outcomes, f"rank {rank.number} applied other outcomes"
            assert rank.watch.cleared == first.watch.cleared, f"rank {rank.number} cleared in other rounds"
            counted = [(each.parts.reports.rounds, each.parts.reports.waves) for each in (rank, first)]
            assert counted[0] == counted[1], f"rank {rank.number} counts {counted[0]}, not {counted[1]}"
        return events

    def check(self) -> None:
        """Whatever holds at any moment."""
        self.wave.check()
        self.loop.check()
        for rank in self.ranks:
            rank.parts.cache.check()
            rank.check_told()

    def _setting(self, ranks: int | None, block: int | None, spare: int) -> Setting:
        """What the world is like."""
        if not spare and block is None and self._rides.random() < RIDING:
            return draw_riding_setting(self.draw, ranks)
        if (ranks is None or ranks > 1) and not spare and self.draw.random() < CROWDED:
            return draw_crowded_setting(self.draw, ranks)
        if not spare and block is None and self.draw.random() < SLOW:
            return draw_slow_setting(self.draw, ranks)
        return draw_setting(self.draw, ranks, block, spare, None)

    def _script(self) -> Script:
        """What happens from outside."""
        return draw_script(self.draw, self.setting)

    def _clears(self, draw: random.Random, script: Script) -> list[float]:
        """When what nobody holds is to be forgotten."""
        if draw.random() < NO_CLEARS:
            return []
        end = script.arrivals[-1][0] + draw.choice((0.01, 0.1, 0.3))
        return sorted(draw.random() * end for _ in range(draw.choice((1, 2, 6))))

    def _clear(self, number: int) -> None:
        self.client.clears.add(number)
        self._wave_hears(Clear(clear_id=number))

    def _play(self, script: Script) -> None:
        for at, request in script.arrivals:
            self._at(at, self._submit, request)
        for at, name in script.aborts:
            self._at(at, self._abort, name)
        for index, noise in enumerate(script.noise):
            self._at(noise.at, self._noise, self.ranks[noise.rank], f"noise-{index}", noise.tokens)
        for eviction in script.evictions:
            self._at(eviction.at, self.ranks[eviction.rank].evict, eviction.window, eviction.kept)
        for rivals in script.rivals:
            rank = self.ranks[rivals.rank]
            self._at(rivals.at, rank.prepare_rivals, rivals.prompts)
            for index, step in enumerate(rivals.steps, 1):
                self._at(rivals.at + 0.002 * index, rank.lower_rivals, step)
            self._at(rivals.at + 0.02, rank.release_rivals)
        if script.slowdown is not None:
            self._at(script.slowdown, self._slow_down, self.draw.choice(self.ranks[1:]))

    def _slow_down(self, rank: SimulatedRank) -> None:
        rank.speed = self.draw.choice((3.0, 10.0))

    def _beat(self, rank: SimulatedRank) -> None:
        """See to it that a rank's WAVE thread takes a turn when its heartbeat is due, while anything else happens."""
        self._beats_due += 1
        self._at(self.now + self.setting.beat, self._beat_due, rank)

    def _beat_due(self, rank: SimulatedRank) -> None:
        self._beats_due -= 1
        if rank.wave is None:
            self._quiet_until = -1.0
        else:
            self._tell_client(rank.wave.turn(None, self.now).events)
        if len(self._heap) > self._beats_due:
            self._beat(rank)

    def _tell_client(self, events: Sequence[Event]) -> None:
        for event in events:
            self.client.hear(event, self.now)

    def _at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (when, self.draw.random(), self._numbers, act, arguments))

    def _send(self, edge: Any, act: Callable[..., None], *arguments: Any) -> None:
        """A message: it takes a while, and stays in order with the others of its edge."""
        delay = self.draw.random() * self._delay
        if isinstance(edge, tuple) and edge[0] == "rounds":
            delay += self.setting.round_delay
        arrival = max(self._edges.get(edge, 0.0), self.now) + delay
        self._edges[edge] = arrival
        self._at(arrival, act, *arguments)

    def _submit(self, request: PrefillRequest) -> None:
        request = msgspec.structs.replace(request, priority=self._own.choice(self.priorities))
        self.client.submit(request, self.now)
        self._wave_hears(Submit(request=request, keys=self._keys.keys(request.tokens)))

    def _abort(self, name: str) -> None:
        """A client cannot abort what it has not submitted; drawn for the same instant, either may come first."""
        if name in self.client.requests:
            self.client.abort(name)
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
                if (rank.waves or rank.holds or rank.admitted or rank.busy) and not rank.executing:
                    self._follow(rank)
            if self._numbers == before:
                return
        raise AssertionError("the ranks do not come to rest")

    def _lead_rounds(self) -> None:
        """A turn of rank 0's WAVE thread."""
        if self._plan is not None or (self.now < self._quiet_until and not self._to_wave):
            return
        messages, self._to_wave = self._to_wave, []
        self._seen_held_back.clear()
        effects = self.wave.turn(messages, self.now)
        self._tell_client(effects.events)
        for message in effects.to_loop:
            self._send("to LOOP", self._loop_hears, message)
        plan = effects.plan
        if plan is None:
            due = self._quiet_until = self.wave.due(self.now)
            ends = math.isfinite(self.planner.due(self.now))
            if ends and self.now < due != self._timer:
                self._timer = due
                self._at(due, lambda: None)
            return
        self._plan = plan
        self.trace.append((self.now, plan))
        self._passed = set(self.queue._waiting) if plan.prepare else set()
        self._held_back = {
            name for name, entry in self.queue._waiting.items() if id(entry) in self._seen_held_back
        }
        asked = (*self.queue._waiting, *(admit.request_id for admit in plan.prepare))
        demand = sum(self.client.requests[name].prompt_tokens for name in asked)
        self._pressure = demand > self.ranks[0].parts.cache.free_tokens()
        for rank in self.ranks:
            self._send(("rounds", rank.number), self._vote, rank, plan)

    def _vote(self, rank: SimulatedRank, plan: Plan) -> None:
        if rank.executing and not rank.gate.parked and plan.hint and self.queue.lockstep:
            self._at(self.now + self.setting.compute / 7, self._vote, rank, plan)
            return
        if rank.wave is None:
            self._counted(self.wave.vote())
            return
        effects = rank.wave.turn(plan, self.now)
        self._tell_client(effects.events)
        assert effects.vote is not None
        self._send(("votes", rank.number), self._count, effects.vote)

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
        self._tell_client(effects.events)
        if self.leases:
            self._check_limit()
        self._plan, self._quiet_until = None, -1.0
        # A parked LOOP goes on when the round resumes it.
        self._loop_due = True

    def _check_limit(self) -> None:
        """Who is not materialised yet on rank 0 holds a lease, of which there are not too many."""
        reservations = self.ranks[0].parts.cache._reservations
        leased = [name for name in reservations if name in self.client.requests]
        leased = [name for name in leased if self.ranks[0].parts.cache.holds(name) != "sequence"]
        assert len(leased) <= self.setting.limit, f"{leased} hold leases, the limit is {self.setting.limit}"

    def _check_order(self, admitted: LaneAdmitted, plan: Plan) -> None:
        name = admitted.request_id
        assert admitted.end == self.client.requests[name].prompt_tokens
        assert 0 <= admitted.start < admitted.end
        arrivals = list(self.client.requests)
        # One that is being lowered may be passed by others while it holds its lease.
        prepared = any(admit.request_id == name for admit in plan.prepare)
        waited = [other for other in self._passed if prepared and other not in self.client.aborted]
        mine = self.client.requests[name].priority
        above = [other for other in waited if self.client.requests[other].priority > mine]
        higher = [other for other in above if other not in self._held_back]
        assert not higher, f"{name} was admitted before {higher} of a higher priority"
        overtaken = [
            other
            for other in waited
            if arrivals.index(other) < arrivals.index(name) and self.client.requests[other].priority == mine
        ]
        if self.queue.order is None or not self._pressure:
            assert not overtaken, f"{name} was admitted before {overtaken}"
        for other in overtaken:
            self.computed_by_others[other] += admitted.end - admitted.start
            assert self.computed_by_others[other] <= self.most_passed, (
                f"{other} was passed by {self.computed_by_others[other]} tokens, {name} the last of them"
            )

    def _apply(self, rank: SimulatedRank, tally: Tally) -> None:
        assert rank.wave is not None
        effects = rank.wave.turn(tally, self.now)
        self._tell_client(effects.events)
        if effects.admitted:
            self._send(("to LOOP", rank.number), rank.admitted.extend, effects.admitted)

    def _tell(self, progress: Sequence[LaneProgress]) -> None:
        for each in progress:
            self._send("to WAVE", self._wave_hears, each)

    def _lead_waves(self) -> None:
        """A turn of rank 0's LOOP thread."""
        rank = self.ranks[0]
        if rank.executing or not (self._loop_due or self._ended):
            return
        ended, self._ended = self._ended, []
        self._tell(self.loop.complete(ended))
        if rank.gate.parked:
            return
        messages, self._to_loop = self._to_loop, []
        left = rank.device.left()
        effects = self.loop.turn(messages, left, self.now)
        self._tell(effects.progress)
        self._loop_due = effects.busy
        if effects.wave is not None:
            assert len(self.lanes.ring) <= 2 * len(self.ranks)
            assert len(left) < WAVES_ON_DEVICE, f"the device has {len(left)} waves to do"
            assert len(effects.wave.spans) <= self.setting.limit, f"{effects.wave} carries too many"
            self.launched[effects.wave.wave_id] = effects.wave.spans
            self._begin(rank, effects.wave, self.now)
        elif (due := self.loop.next_launch(left)) is not None:
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
        if rank.gate.parked:
            return
        arrives = bool(rank.waves) and not rank.holds
        if not (arrives or rank.holds or self.draw.random() < rank.eager):
            return
        wave = None
        if arrives:
            wave, rank.ready = rank.waves.popleft()
        admitted, rank.admitted = rank.admitted, []
        effects = loop.turn(wave, admitted, self.now)
        rank.busy, rank.holds = effects.busy, loop.holds_wave
        if effects.wave is not None:
            self._begin(rank, effects.wave, rank.ready)

    def _begin(self, rank: SimulatedRank, header: WaveHeader, ready: float) -> None:
        wave_id, spans = header.wave_id, header.spans
        assert not rank.watch.stopped, (
            f"rank {rank.number} runs wave {wave_id} between look-up and allocation"
        )
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
        stall = 30.0 if self.draw.random() < 0.01 and not self.setting.crowd else 1.0
        return self.draw.random() * self.setting.compute * rank.speed * stall

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
            if span.last:
                self.client.hear(Finished(request_id=span.request_id, first=FIRST, stages=()), self.now)

    def _stuck(self) -> str:
        held = {rank.number: rank.parts.cache.use() for rank in self.ranks}
        return f"{self.client.live} at {self.now:.3f}, {self.planner.waiting} wait, {held}"
