"""A replica in one process on a virtual clock: production code around virtual devices, for big sweeps.

Prompts, hashes, trees, leases, escrow, rounds, messages' encoding, lanes and planners are the production code of every
rank; sockets, threads and devices are not. A device takes what the cost model says. Host code takes its CPU time
measured here, where each rank has one core and its WAVE and LOOP share one interpreter; a message takes ``latency``.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wavepp_worker import EngineConfig
from wavepp_worker.model.cost_model import read_timed_model
from wavepp_worker.model.info import read_model_info
from wavepp_worker.runtime.admission_queue import AdmissionQueue
from wavepp_worker.runtime.collector import collect_young_only
from wavepp_worker.runtime.lanes import Lanes
from wavepp_worker.runtime.layout import rank_configs
from wavepp_worker.runtime.leader_loop import LAUNCH_AHEAD
from wavepp_worker.runtime.messages import PrefillRequest
from wavepp_worker.runtime.planner import LAUNCH_MARGIN
from wavepp_worker.runtime.planners import make_planner
from wavepp_worker.runtime.protocol import Codec, Plan, Span, Submit, Tally, Vote, encode
from wavepp_worker.runtime.ring import Ring
from wavepp_worker.runtime.round_planner import RoundPlanner
from wavepp_worker.runtime.threads import LaneAdmitted, LaneAdvance, LaneStarted
from wavepp_worker.runtime.timeline import RankTimeline

from bench.virtual_host import Effect, Events
from bench.virtual_rank import VirtualRank, Wave

LATENCY = 100e-6
"""Seconds of a message between two processes of a host (ZeroMQ over ipc, a thread to wake)."""


@dataclass
class Served:
    """One request: when it came and ended (virtual seconds), its tokens and those reused."""

    prompt_tokens: int
    submitted: float
    reused_tokens: int = 0
    finished: float = math.nan

    @property
    def completion(self) -> float:
        return self.finished - self.submitted


class Replica:
    """All ranks of one configuration; traffic comes one ``run`` after the other, caches stay."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        charge: float = 1.0,
        latency: float = LATENCY,
        timeline: bool = False,
    ) -> None:
        """``charge`` scales the host's CPU time; 0 makes runs repeatable. ``timeline`` records what happens.

        Raises:
            ConfigError: as the engine would.
        """
        self.events = events = Events()
        model = read_timed_model(config.model)
        with tempfile.TemporaryDirectory() as directory:
            configs = rank_configs(config, read_model_info(config.model), Path(directory))
        self.ranks = [VirtualRank(each, model, events, charge, timeline) for each in configs]
        first = configs[0]
        headroom = first.headroom * first.block if first.leases else 0
        queue = AdmissionQueue(first.max_batch, lockstep=first.lockstep, headroom=headroom)
        self.planner = RoundPlanner(queue, leases=first.leases)
        self.lanes = Lanes(Ring(2 * len(configs)), make_planner(first), first.max_batch)
        self.waves = self.rounds = 0
        self.planning: list[float] = []
        self._latency, self._round_delay = latency, first.round_delay
        self._served: dict[str, Served] = {}
        self._numbers = 0
        self._commands: list[bytes] = []
        self._advances: list[LaneAdvance] = []
        self._events_of_lanes: list[LaneAdmitted] = []
        self._completions: list[int] = []
        self._in_round = False
        self._wave_due = False
        self._timer = math.inf
        self._votes: dict[int, bytes] = {}
        self._ring_opened = 0.0
        self._backlog = 0
        self._seconds: dict[int, float] = {}
        self._answered: Callable[[], None] = lambda: None
        collect_young_only()

    def closed_loop(self, prompts: Iterable[bytes], concurrency: int) -> list[Served]:
        """Send the prompts (packed tokens), ``concurrency`` at a time; returns when all are answered."""
        left = iter(prompts)

        def following() -> None:
            if (prompt := next(left, None)) is not None:
                self._submit(prompt)

        self._answered = following
        for _ in range(concurrency):
            following()
        return self._run()

    def open_loop(self, arrivals: Iterator[tuple[float, bytes]]) -> list[Served]:
        """Send each prompt that many seconds after now, in order; returns when all are answered."""
        begun = self.events.now

        def following() -> None:
            if (arrival := next(arrivals, None)) is not None:
                self.events.at(begun + arrival[0], arrive, arrival[1])

        def arrive(prompt: bytes) -> None:
            self._submit(prompt)
            following()

        self._answered = lambda: None
        following()
        return self._run()

    def audit(self) -> None:
        """Raise unless every rank let go of everything."""
        self.planner.check()
        self.lanes.check()
        for rank in self.ranks:
            rank.state.cache.audit()
            assert not rank.state.requests.ids(), "a rank still knows requests"

    def timelines(self) -> list[RankTimeline]:
        """What every rank did since the last call; for ``write_timeline``."""
        taken = [rank.timeline.take() for rank in self.ranks]
        return [
            RankTimeline(number, tuple(slices), dropped) for number, (slices, dropped) in enumerate(taken)
        ]

    @property
    def median_planning(self) -> float:
        """Seconds of CPU of one planning decision."""
        return statistics.median(self.planning) if self.planning else 0.0

    def _run(self) -> list[Served]:
        self.waves = self.rounds = 0
        self.planning = []
        for rank in self.ranks:
            rank.count_from_now()
        self.events.run()
        served, self._served = list(self._served.values()), {}
        unanswered = sum(math.isnan(each.finished) for each in served)
        if unanswered:
            raise RuntimeError(f"{unanswered} of {len(served)} requests were never answered")
        return served

    def _submit(self, prompt: bytes) -> None:
        name = f"r{self._numbers}"
        self._numbers += 1
        request = PrefillRequest(request_id=name, tokens=prompt)
        self._served[name] = Served(request.prompt_tokens, self.events.now)
        self._after(self._latency, self._commanded, encode(Submit(request=request)))

    def _after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        self.events.at(self.events.now + seconds, act, *arguments)

    def _commanded(self, command: bytes) -> None:
        self._commands.append(command)
        self._wake_wave()

    # Rank 0's WAVE thread (``runtime.leader``).

    def _wake_wave(self) -> None:
        if not (self._in_round or self._wave_due):
            self._wave_due = True
            self.ranks[0].host.do(self._wave_turn)

    def _wave_turn(self) -> Effect:
        self._wave_due = False
        now, planner = self.events.now, self.planner
        commands, self._commands = self._commands, []
        for encoded in commands:
            command = Codec.command.decode(encoded)
            assert isinstance(command, Submit)
            planner.submit(command.request, now)
        advances, self._advances = self._advances, []
        for advance in advances:
            planner.advance(advance)
        plan = planner.next_plan(now, self.ranks[0].state.cache.room())
        if plan is None:
            due = planner.due(now)
            if due != self._timer and math.isfinite(due):
                self._timer = due
                return lambda: self.events.at(due, self._wake_wave)
            return None
        self._in_round = True
        self._votes = {}
        message = encode(plan)
        return lambda: self._broadcast(plan, message)

    def _broadcast(self, plan: Plan, message: bytes) -> None:
        self.rounds += 1
        for rank in self.ranks[1:]:
            self._after(self._latency, rank.host.do, lambda rank=rank: self._vote(rank, message))
        self.ranks[0].host.do(lambda: self._lead(plan))

    def _lead(self, plan: Plan) -> Effect:
        vote = encode(self.ranks[0].actions.vote(plan))
        return lambda: self._count(plan, 0, vote)

    def _vote(self, rank: VirtualRank, message: bytes) -> Effect:
        plan = Codec.round.decode(message)
        assert isinstance(plan, Plan)
        vote = encode(rank.actions.vote(plan))
        return lambda: self._after(self._latency, self._count, plan, rank.config.rank, vote)

    def _count(self, plan: Plan, rank: int, vote: bytes) -> None:
        self._votes[rank] = vote
        if len(self._votes) == len(self.ranks):
            self._after(self._round_delay, self.ranks[0].host.do, lambda: self._decide(plan))

    def _decide(self, plan: Plan) -> Effect:
        votes = [self._decoded(self._votes[rank.config.rank]) for rank in self.ranks]
        tally = encode(Tally(round_id=plan.round_id, votes=tuple(votes)))
        outcome = self.ranks[0].actions.apply(plan, votes)
        result = self.planner.apply(plan, outcome, self.events.now)

        def tell() -> None:
            for rank in self.ranks[1:]:
                self._after(self._latency, rank.host.do, lambda rank=rank: self._apply(rank, plan, tally))
            for admission in result.admissions:
                name, served = admission.request_id, self._served[admission.request_id]
                served.reused_tokens = admission.endpoint
                self.ranks[0].admitted_at[name] = self.events.now
                self._events_of_lanes.append(LaneAdmitted(name, admission.endpoint, served.prompt_tokens))
            self._in_round = False
            self._wake_wave()
            self._wake_loop(self.ranks[0])

        return tell

    @staticmethod
    def _decoded(vote: bytes) -> Vote:
        decoded = Codec.round.decode(vote)
        assert isinstance(decoded, Vote)
        return decoded

    def _apply(self, rank: VirtualRank, plan: Plan, tally: bytes) -> Effect:
        decoded = Codec.round.decode(tally)
        assert isinstance(decoded, Tally)
        outcome = rank.actions.apply(plan, decoded.votes)

        def tell() -> None:
            for admit in outcome.admitted:
                rank.admitted.append(admit.request_id)
                rank.admitted_at[admit.request_id] = self.events.now
            self._wake_loop(rank)

        return tell

    # LOOP threads (``runtime.leader_loop``, ``runtime.follower``).

    def _wake_loop(self, rank: VirtualRank) -> None:
        if not rank.loop_due:
            rank.loop_due = True
            rank.host.do(self._leader_loop if rank.config.first else lambda: self._follower_loop(rank))

    def _leader_loop(self) -> Effect:
        rank = self.ranks[0]
        rank.loop_due = False
        advances: list[LaneAdvance] = []
        completions, self._completions = self._completions, []
        for wave_id in completions:
            if self.lanes.ring.full:
                self._ring_opened = self.events.now
            advances += self.lanes.complete(wave_id, self._seconds.pop(wave_id))
        if rank.parking.parked:
            return lambda: self._tell(advances)
        admitted, self._events_of_lanes = self._events_of_lanes, []
        for event in admitted:
            advances += self.lanes.take(event)
        begun = time.thread_time()
        slack = max(0.0, rank.free_at - self.events.now)
        spans = self.lanes.propose(self.planner.waiting, slack) if self._backlog < LAUNCH_AHEAD else ()
        if not spans and slack > LAUNCH_MARGIN:
            # Past that moment by a microsecond: rounding must not make it seem to lie ahead still.
            self.events.at(rank.free_at - LAUNCH_MARGIN + 1e-6, self._wake_loop, rank)
        if spans:
            self.planning.append(time.thread_time() - begun)
        name = None if spans else self.lanes.next_leased()
        for each in [span.request_id for span in spans] if spans else [name] if name else []:
            self.lanes.started(each)
            if rank.materialise(each):
                advances.append(LaneStarted(each))
        if not spans:
            return lambda: self._tell(advances, again=name is not None)
        wave_id, scheduled = self.lanes.launch(spans)
        rank.execute(spans)
        return lambda: self._tell([*advances, *scheduled], again=True, launched=Wave(wave_id, spans))

    def _tell(self, advances: list[LaneAdvance], again: bool = False, launched: Wave | None = None) -> None:
        if launched is not None:
            self.waves += 1
            names = [span.request_id for span in launched.spans]
            arrived = min(self._served[name].submitted for name in names)
            admitted = min(self.ranks[0].admitted_at[name] for name in names)
            causes = [("no_work", arrived), ("admission", admitted), ("upstream", self._ring_opened)]
            self._backlog += 1
            ended = self._launch(self.ranks[0], launched, causes)
            self.events.at(ended / 1e9, self._first_stage_done)
        if advances:
            self._advances += advances
            self._wake_wave()
        if again:
            self._wake_loop(self.ranks[0])

    def _first_stage_done(self) -> None:
        self._backlog -= 1
        self._wake_loop(self.ranks[0])

    def _follower_loop(self, rank: VirtualRank) -> Effect:
        rank.loop_due = False
        if rank.parking.parked:
            return None
        if rank.waves:
            wave = rank.waves[0]
            if not rank.ready(wave.spans):
                return None
            rank.waves.popleft()
            rank.execute(wave.spans)
            return lambda: self._follow(rank, wave)
        if rank.admitted:
            rank.materialise(rank.admitted.popleft())
            return lambda: self._wake_loop(rank)
        return None

    def _follow(self, rank: VirtualRank, wave: Wave) -> None:
        arrived = wave.arrives / 1e9
        admitted = max(rank.admitted_at[span.request_id] for span in wave.spans)
        # What the stage before waited for, this one waited for too, as far as it stood still at all.
        free, causes = rank.free_at, []
        for cause in ("no_work", "admission"):
            free += wave.gap[cause]
            causes.append((cause, min(free, arrived)))
        causes += [("upstream", arrived), ("admission", admitted)]
        self._launch(rank, wave, causes)
        self._wake_loop(rank)

    def _launch(self, rank: VirtualRank, wave: Wave, causes: list[tuple[str, float]]) -> int:
        done, gap, seconds = rank.launch(wave, causes)
        self._seconds[wave.wave_id] = max(seconds, self._seconds.get(wave.wave_id, 0.0))
        if rank.config.last:
            self.events.at(done / 1e9 + self._latency, self._complete, wave.wave_id, wave.spans)
        else:
            follower = self.ranks[rank.config.rank + 1]
            self._after(self._latency, self._arrive, follower, rank.pass_on(wave, done, gap))
        return done

    def _arrive(self, rank: VirtualRank, wave: Wave) -> None:
        rank.waves.append(wave)
        self._wake_loop(rank)

    def _complete(self, wave_id: int, spans: tuple[Span, ...]) -> None:
        self._completions.append(wave_id)
        self._wake_loop(self.ranks[0])
        for span in spans:
            if span.last:
                self._served[span.request_id].finished = self.events.now
                for rank in self.ranks:
                    rank.admitted_at.pop(span.request_id, None)
                self._answered()
