"""Execution of a replica on the virtual clock: the LOOP threads of all ranks, and the ring of waves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import LAUNCH_MARGIN_SECONDS
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import LaneAdmitted, LaneAdvance, LaneStarted
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.rank.leader_loop import LAUNCH_AHEAD

from bench.virtual.host import Effect, Events
from bench.virtual.rank import VirtualRank, Wave


class VirtualLoops:
    """What ``runtime.leader_loop`` and ``runtime.follower`` do between processes, as events.

    Attributes:
        lanes: the production lanes of rank 0.
        waves: waves launched since it was last set to 0.
        planning: CPU seconds of each planning decision since it was last cleared.
        submitted: when each request came (virtual seconds).
        waiting: how many requests are not admitted yet.
        on_advances: called with what rank 0's WAVE thread has to hear of lanes.
        on_ended: called with a request whose last wave the last rank has executed.
    """

    def __init__(
        self, events: Events, ranks: Sequence[VirtualRank], config: RankConfig, latency: float
    ) -> None:
        self.lanes = Lanes(Ring(2 * len(ranks)), make_planner(config), config.max_num_seqs)
        self.waves = 0
        self.planning: list[float] = []
        self.submitted: dict[str, float] = {}
        self.waiting: Callable[[], int] = lambda: 0
        self.on_advances: Callable[[Sequence[LaneAdvance]], None] = lambda advances: None
        self.on_ended: Callable[[str], None] = lambda request_id: None
        self._events, self._ranks, self._latency = events, ranks, latency
        self._admitted: list[LaneAdmitted] = []
        self._completions: list[int] = []
        self._seconds: dict[int, float] = {}
        self._ring_opened = 0.0
        self._backlog = 0

    def admit(self, event: LaneAdmitted) -> None:
        """A request may run from now on; ``wake`` makes rank 0's LOOP look."""
        self._ranks[0].admitted_at[event.request_id] = self._events.now
        self._admitted.append(event)

    def wake(self, rank: VirtualRank) -> None:
        """A rank's LOOP has something to look at."""
        if not rank.loop_due:
            rank.loop_due = True
            rank.host.do(self._lead if rank.config.first else lambda: self._follow(rank))

    def _lead(self) -> Effect:
        rank = self._ranks[0]
        rank.loop_due = False
        advances: list[LaneAdvance] = []
        completions, self._completions = self._completions, []
        for wave_id in completions:
            if self.lanes.ring.full:
                self._ring_opened = self._events.now
            advances += self.lanes.complete(wave_id, self._seconds.pop(wave_id))
        if rank.parking.parked:
            return lambda: self._tell(advances)
        admitted, self._admitted = self._admitted, []
        for event in admitted:
            advances += self.lanes.take(event)
        begun = time.thread_time()
        slack = max(0.0, rank.free_at - self._events.now)
        spans = self.lanes.propose(self.waiting(), slack) if self._backlog < LAUNCH_AHEAD else ()
        if not spans and slack > LAUNCH_MARGIN_SECONDS:
            # Past that moment by a microsecond: rounding must not make it seem to lie ahead still.
            self._events.at(rank.free_at - LAUNCH_MARGIN_SECONDS + 1e-6, self.wake, rank)
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

    def _tell(
        self, advances: Sequence[LaneAdvance], again: bool = False, launched: Wave | None = None
    ) -> None:
        leader = self._ranks[0]
        if launched is not None:
            self.waves += 1
            names = [span.request_id for span in launched.spans]
            arrived = min(self.submitted[name] for name in names)
            admitted = min(leader.admitted_at[name] for name in names)
            causes = [("no_work", arrived), ("admission", admitted), ("upstream", self._ring_opened)]
            self._backlog += 1
            ended = self._launch(leader, launched, causes)
            self._events.at(ended / 1e9, self._first_stage_done)
        self.on_advances(advances)
        if again:
            self.wake(leader)

    def _first_stage_done(self) -> None:
        self._backlog -= 1
        self.wake(self._ranks[0])

    def _follow(self, rank: VirtualRank) -> Effect:
        rank.loop_due = False
        if rank.parking.parked:
            return None
        if rank.waves:
            wave = rank.waves[0]
            if not rank.ready(wave.spans):
                return None
            rank.waves.popleft()
            rank.execute(wave.spans)
            return lambda: self._followed(rank, wave)
        if rank.admitted:
            rank.materialise(rank.admitted.popleft())
            return lambda: self.wake(rank)
        return None

    def _followed(self, rank: VirtualRank, wave: Wave) -> None:
        arrived = wave.arrives / 1e9
        admitted = max(rank.admitted_at[span.request_id] for span in wave.spans)
        # What the stage before waited for, this one waited for too, as far as it stood still at all.
        free, causes = rank.free_at, []
        for cause in ("no_work", "admission"):
            free += wave.gap[cause]
            causes.append((cause, min(free, arrived)))
        causes += [("upstream", arrived), ("admission", admitted)]
        self._launch(rank, wave, causes)
        self.wake(rank)

    def _launch(self, rank: VirtualRank, wave: Wave, causes: Sequence[tuple[str, float]]) -> int:
        done, gap, seconds = rank.launch(wave, causes)
        self._seconds[wave.wave_id] = max(seconds, self._seconds.get(wave.wave_id, 0.0))
        if rank.config.last:
            self._events.at(done / 1e9 + self._latency, self._complete, wave.wave_id, wave.spans)
        else:
            follower = self._ranks[rank.config.rank + 1]
            self._events.after(self._latency, self._arrive, follower, rank.pass_on(wave, done, gap))
        return done

    def _arrive(self, rank: VirtualRank, wave: Wave) -> None:
        rank.waves.append(wave)
        self.wake(rank)

    def _complete(self, wave_id: int, spans: Sequence[Span]) -> None:
        self._completions.append(wave_id)
        self.wake(self._ranks[0])
        for span in spans:
            if span.last:
                for rank in self._ranks:
                    rank.admitted_at.pop(span.request_id, None)
                del self.submitted[span.request_id]
                self.on_ended(span.request_id)
