"""The LOOP threads of a replica on the virtual clock: production's turns, virtual devices, and links between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import (
    NOBODY,
    LaneAdmitted,
    LaneMessage,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.loop_turn import FollowerLoop, LeaderLoop

from bench.virtual.host import Effect, Events
from bench.virtual.rank import VirtualRank, Wave


class TimedLanes(Lanes):
    """Rank 0's lanes; ``planning`` has the CPU seconds of each decision that made a wave, until it is cleared."""

    planning: list[float]

    def propose(
        self,
        waiting: RequestsWaiting = NOBODY,
        slack: float = 0.0,
        held: float = 0.0,
        now: float | None = None,
    ) -> tuple[Span, ...]:
        begun = time.thread_time()
        spans = super().propose(waiting, slack, held, now)
        if spans:
            self.planning.append(time.thread_time() - begun)
        return spans


class VirtualLoops:
    """Drives ``LeaderLoop`` and every ``FollowerLoop`` as ``runtime.rank.loop_thread`` does between processes.

    Attributes:
        lanes: rank 0's.
        leader: the LOOP thread of rank 0.
        waves: waves launched since it was last set to 0.
        submitted: when each request came (virtual seconds).
        on_progress: called with what rank 0's WAVE thread has to hear of lanes.
        on_ended: called with a request whose last wave the last rank has executed.
    """

    def __init__(
        self,
        events: Events,
        ranks: Sequence[VirtualRank],
        config: RankConfig,
        latency: float,
        *,
        riders: bool,
    ) -> None:
        """``riders``: as of ``Lanes``."""
        planner = make_planner(config, config.ranks)
        self.lanes = TimedLanes(Ring(2 * len(ranks)), planner, config.max_num_seqs, riders=riders)
        self.lanes.planning = []
        self.leader = LeaderLoop(self.lanes, ranks[0].parts.order, ranks[0].timeline)
        self.waves = 0
        self.submitted: dict[str, float] = {}
        self.on_progress: Callable[[Sequence[LaneProgress]], None] = lambda progress: None
        self.on_ended: Callable[[str], None] = lambda request_id: None
        self._followers = {
            rank.number: FollowerLoop(rank.parts.order, rank.timeline, config.wait) for rank in ranks[1:]
        }
        self._events, self._ranks, self._latency = events, ranks, latency
        self._messages: list[LaneMessage] = []
        self._completions: list[WaveDone] = []
        self._seconds: dict[int, float] = {}
        self._ring_opened = 0.0
        self._timer = -math.inf
        for rank in ranks:
            rank.gate.on_resume = partial(self._wake, rank)

    def tell_leader(self, messages: Sequence[LaneMessage]) -> None:
        """What rank 0's WAVE thread says; requests that wait are nothing to wake up for."""
        self._messages += messages
        for message in messages:
            if isinstance(message, LaneAdmitted):
                self._ranks[0].admitted_at[message.request_id] = self._events.now
        if any(not isinstance(message, RequestsWaiting) for message in messages):
            self._wake(self._ranks[0])

    def tell_follower(self, rank: VirtualRank, admitted: Sequence[str]) -> None:
        """What another rank's WAVE thread says."""
        rank.admitted += admitted
        for request_id in admitted:
            rank.admitted_at[request_id] = self._events.now
        if admitted:
            self._wake(rank)

    def _wake(self, rank: VirtualRank) -> None:
        if not rank.loop_due:
            rank.loop_due = True
            rank.host.do(self._lead if rank.number == 0 else lambda: self._follow(rank))

    def _lead(self) -> Effect:
        rank = self._ranks[0]
        rank.loop_due = False
        completions, self._completions = self._completions, []
        if completions and self.lanes.ring.full:
            self._ring_opened = self._events.now
        progress = self.leader.complete(completions)
        if rank.gate.parked:
            return lambda: self.on_progress(progress)
        messages, self._messages = self._messages, []
        left = rank.device.left()
        effects = self.leader.turn(messages, left, self._events.now)
        progress = (*progress, *effects.progress)
        wave = effects.wave
        if wave is not None:
            rank.execute(wave)
            return lambda: self._led(progress, wave)
        due = self.leader.next_launch(left)
        if due is not None:
            # Past that moment by a microsecond: rounding must not make it seem to lie ahead still.
            self._wake_at(self._events.now + due + 1e-6)

        def rest() -> None:
            self.on_progress(progress)
            if effects.busy:
                self._wake(rank)

        return rest

    def _wake_at(self, when: float) -> None:
        # One timer at a time: what an earlier one leaves to do, its turn asks for again.
        if not self._events.now < self._timer <= when:
            self._timer = when
            self._events.at(when, self._wake, self._ranks[0])

    def _led(self, progress: Sequence[LaneProgress], wave: WaveHeader) -> None:
        leader = self._ranks[0]
        self.leader.executed()
        self.waves += 1
        names = [span.request_id for span in wave.spans]
        arrived = min(self.submitted[name] for name in names)
        admitted = min(leader.admitted_at[name] for name in names)
        causes = [("no_work", arrived), ("admission", admitted), ("upstream", self._ring_opened)]
        self._launch(leader, Wave(wave), causes)
        self.on_progress(progress)
        self._wake(leader)

    def _follow(self, rank: VirtualRank) -> Effect:
        rank.loop_due = False
        if rank.gate.parked:
            return None
        loop, arriving = self._followers[rank.number], None
        if rank.waves and not loop.holds_wave:
            rank.executing = rank.waves.popleft()
            arriving = rank.executing.header
        admitted = list(rank.admitted)
        rank.admitted.clear()
        effects = loop.turn(arriving, admitted, self._events.now)
        if effects.wave is None:
            return (lambda: self._wake(rank)) if effects.busy else None
        rank.execute(effects.wave)
        return lambda: self._followed(rank, loop)

    def _followed(self, rank: VirtualRank, loop: FollowerLoop) -> None:
        wave = rank.executing
        assert wave is not None
        loop.executed()
        arrived = wave.arrives / 1e9
        admitted = max(rank.admitted_at[span.request_id] for span in wave.header.spans)
        # What the stage before waited for, this one waited for too, as far as it stood still at all.
        free, causes = rank.free_at, []
        for cause in ("no_work", "admission"):
            free += wave.gap[cause]
            causes.append((cause, min(free, arrived)))
        causes += [("upstream", arrived), ("admission", admitted)]
        self._launch(rank, wave, causes)
        self._wake(rank)

    def _launch(self, rank: VirtualRank, wave: Wave, causes: Sequence[tuple[str, float]]) -> None:
        done, gap, seconds = rank.launch(wave, causes)
        header = wave.header
        self._seconds[header.wave_id] = max(seconds, self._seconds.get(header.wave_id, 0.0))
        if rank.number == len(self._ranks) - 1:
            self._events.at(done / 1e9 + self._latency, self._complete, header)
        else:
            follower = self._ranks[rank.number + 1]
            self._events.after(self._latency, self._arrive, follower, rank.pass_on(wave, done, gap))

    def _arrive(self, rank: VirtualRank, wave: Wave) -> None:
        rank.waves.append(wave)
        self._wake(rank)

    def _complete(self, wave: WaveHeader) -> None:
        self._completions.append(WaveDone(wave_id=wave.wave_id, compute=(self._seconds.pop(wave.wave_id),)))
        self._wake(self._ranks[0])
        for span in wave.spans:
            if span.last:
                for rank in self._ranks:
                    rank.admitted_at.pop(span.request_id, None)
                del self.submitted[span.request_id]
                self.on_ended(span.request_id)
