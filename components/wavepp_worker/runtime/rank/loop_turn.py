"""The LOOP thread of every rank as turns: messages and the device's state in, a wave to execute out. No sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wavepp_worker.errors import PositionMismatch, StepTimeout
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import LAUNCH_MARGIN_SECONDS
from wavepp_worker.runtime.protocol.commands import Explain
from wavepp_worker.runtime.protocol.events import ForwardPass, LanesExplained
from wavepp_worker.runtime.protocol.lane_events import (
    NOBODY,
    LaneMaterialised,
    LaneMessage,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.waves import WaveDone, WaveHeader
from wavepp_worker.runtime.rank.execution_order import ExecutionOrder
from wavepp_worker.runtime.rank.pass_meter import PassMeter
from wavepp_worker.runtime.state.idle_seconds import Cause
from wavepp_worker.runtime.trace.timeline import Timeline

WAVES_ON_DEVICE = 2
"""Most waves on rank 0's own device, where that runs behind the host: one that runs, and one behind it. A wave launched
earlier than that cannot take in what is admitted meanwhile."""
HELD_RETRY_SECONDS = 0.001
"""Between two questions to a planner that holds what it could launch."""
PLANNER_PATIENCE_SECONDS = 1.0
"""Seconds without a wave in flight after which a planner that still holds what it could launch is broken."""
MIN_TRACED_WAIT_NS = 20_000
"""Nanoseconds from which a wave's wait for its requests to be admitted is worth a slice of the timeline."""


@dataclass(frozen=True)
class LeaderLoopEffects:
    """What follows from a turn of rank 0's LOOP thread.

    Attributes:
        progress: to the WAVE thread, before the wave is executed.
        wave: to be executed now.
        busy: there may be more to do at once.
        explained: to the engine, before the wave is executed.
        waits_for: without a wave, why there is none.
    """

    progress: tuple[LaneProgress, ...] = ()
    wave: WaveHeader | None = None
    busy: bool = False
    explained: tuple[LanesExplained, ...] = ()
    waits_for: Cause = "host"


class LeaderLoop:
    """Rank 0: plans waves from admitted lanes and keeps the ring supplied.

    Never waits for other ranks: only the ring and rank 0's own device bound how far it runs ahead. While nothing
    can be launched, it materialises admitted requests.
    """

    def __init__(
        self,
        lanes: Lanes,
        order: ExecutionOrder,
        timeline: Timeline,
        on_pass: Callable[[ForwardPass], None] | None = None,
    ) -> None:
        """``on_pass``: told of every wave that has ended, but for those of probes alone."""
        self._on_pass = on_pass
        self._meter = None if on_pass is None else PassMeter(lanes)
        self._lanes = lanes
        self._order = order
        self._timeline = timeline
        self._waiting = NOBODY
        self._held_since: float | None = None
        self._idle_since = timeline.now()

    def complete(self, ended: Iterable[WaveDone]) -> tuple[LaneProgress, ...]:
        """Take waves out of flight that the last rank has executed; also while the rank is parked.

        Raises:
            PositionMismatch: a wave is not the oldest in flight.
        """
        progress: list[LaneProgress] = []
        for done in ended:
            progress += self._lanes.complete(done.wave_id, max(done.compute, default=0.0))
            if self._meter is not None and self._on_pass is not None:
                passed = self._meter.ended(done)
                if passed is not None:
                    self._on_pass(passed)
        return tuple(progress)

    def turn(
        self,
        messages: Iterable[LaneMessage],
        left: Sequence[float],
        now: float,
    ) -> LeaderLoopEffects:
        """Take what the WAVE thread told, then plan a wave, or else materialise one request.

        Args:
            left: seconds until each wave on rank 0's device ends, in order; empty where it computes in step
                with the host.
            now: seconds, of a clock that never goes back.

        Raises:
            StepTimeout: the planner has nothing for admitted requests; nobody else would ever notice.
        """
        progress: list[LaneProgress] = []
        explained: list[LanesExplained] = []
        for message in messages:
            if isinstance(message, RequestsWaiting):
                self._waiting = message
            elif isinstance(message, Explain):
                explained.append(self._explain(message, len(left)))
            else:
                progress += self._lanes.take(message)
        wave = self._launch(left, now, progress) if len(left) < WAVES_ON_DEVICE else None
        if wave is not None:
            return LeaderLoopEffects(tuple(progress), wave, busy=True, explained=tuple(explained))
        request_id = self._lanes.next_to_materialise()
        if request_id is not None:
            self._materialise(request_id, progress)
            self.executed()
        return LeaderLoopEffects(
            tuple(progress),
            busy=request_id is not None,
            explained=tuple(explained),
            waits_for=self._waits_for(),
        )

    def executed(self) -> None:
        """The wave of the latest turn is executed: from now on, the thread waits for work."""
        self._idle_since = self._timeline.now()

    def check(self) -> None:
        """Raise ValueError unless lanes, leases and ring agree."""
        self._lanes.check()

    @property
    def in_flight(self) -> int:
        """Waves between their launch and their end on the last rank, but for those of probes alone."""
        return self._lanes.in_flight

    def next_launch(self, left: Sequence[float]) -> float | None:
        """Seconds until a wave may be launched although no message comes; None if only a message can change that.

        Either the planner holds what could be launched, or rank 0's device has as many waves as it may have, or the
        planner waits while there is work on the device.
        """
        if self._held_since is not None:
            return HELD_RETRY_SECONDS
        if not left:
            return None
        due = left[0] if len(left) >= WAVES_ON_DEVICE else left[-1] - LAUNCH_MARGIN_SECONDS
        return due if due > 0 else None

    def _waits_for(self) -> Cause:
        if len(self._lanes):
            return "ring" if self._lanes.ring.full else "planner"
        return "admission" if self._waiting.requests else "no_requests"

    def _explain(self, question: Explain, on_device: int) -> LanesExplained:
        return LanesExplained(
            question_id=question.question_id,
            requests=tuple(self._lanes.whereabouts(question.request_ids)),
            in_flight=len(self._lanes.ring),
            ring=self._lanes.ring.size,
            on_device=on_device,
        )

    def _launch(self, left: Sequence[float], now: float, progress: list[LaneProgress]) -> WaveHeader | None:
        begun = self._timeline.now()
        held = 0.0 if self._held_since is None else now - self._held_since
        slack = left[-1] if left else 0.0
        spans = self._lanes.propose(self._waiting, slack, held, now)
        if spans or slack > LAUNCH_MARGIN_SECONDS or not self._lanes.startable:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        if not spans:
            if held > PLANNER_PATIENCE_SECONDS and self._held_since is not None and not len(self._lanes.ring):
                raise StepTimeout(
                    f"the planner has held all {len(self._lanes)} admitted requests for {held:.1f} s although no wave "
                    "is in flight; this is a fault of the planner: restart the worker, with another planner if need be"
                )
            return None
        self._timeline.record("loop", "wait", self._idle_since, begun)
        self._timeline.record("loop", "plan", begun, self._timeline.now())
        for span in spans:
            self._lanes.materialised(span.request_id)
        progress += map(LaneMaterialised, self._order.claim(spans))
        wave_id, scheduled = self._lanes.launch(spans)
        if self._meter is not None:
            self._meter.launched(wave_id, spans, now)
        progress += scheduled
        return WaveHeader(wave_id=wave_id, spans=spans)

    def _materialise(self, request_id: str, progress: list[LaneProgress]) -> None:
        self._lanes.materialised(request_id)
        if self._order.materialise(request_id):
            progress.append(LaneMaterialised(request_id))


@dataclass(frozen=True)
class FollowerLoopEffects:
    """What follows from a turn of another rank's LOOP thread.

    Attributes:
        wave: to be executed now.
        busy: there may be more to do at once.
        waits_for: without a wave, why there is none.
    """

    wave: WaveHeader | None = None
    busy: bool = False
    waits_for: Cause = "host"


class FollowerLoop:
    """Ranks 1 … P-1: execute the waves in the order they arrive, and materialise admitted requests in between.

    A wave may come before this rank knows that its requests are admitted: it waits, a gap on this rank only.
    """

    def __init__(self, order: ExecutionOrder, timeline: Timeline, timeout: float) -> None:
        """``timeout``: seconds a wave may wait for admission."""
        self._order = order
        self._timeline = timeline
        self._timeout = timeout
        self._admitted: deque[str] = deque()
        self._wave: WaveHeader | None = None
        self._arrived = 0.0
        self._received = 0
        self._idle_since = timeline.now()

    @property
    def holds_wave(self) -> bool:
        """Whether a wave waits for admission: the next one must not be given before it is executed."""
        return self._wave is not None

    def turn(self, wave: WaveHeader | None, admitted: Iterable[str], now: float) -> FollowerLoopEffects:
        """Take a wave, if one arrived, and what the WAVE thread told; then execute or materialise.

        Raises:
            PositionMismatch: a wave waits for admission for too long, or another one came meanwhile.
        """
        self._admitted.extend(admitted)
        if wave is not None:
            if self._wave is not None:
                raise PositionMismatch(f"wave {wave.wave_id} came while wave {self._wave.wave_id} waits")
            self._wave, self._arrived, self._received = wave, now, self._timeline.now()
            self._timeline.record("loop", "receive", self._idle_since, self._received, wave.wave_id)
        if self._wave is not None:
            missing = self._order.unadmitted(self._wave.spans)
            if missing is None:
                wave, self._wave = self._wave, None
                self._trace_wait(wave)
                return FollowerLoopEffects(wave, busy=bool(self._admitted))
            if now - self._arrived >= self._timeout:
                raise PositionMismatch(
                    f"request {missing.request_id} is scheduled at token {missing.start}, but this rank has not "
                    f"admitted it after {self._timeout:.0f} s"
                )
        request_id = self._next_ready()
        if request_id is not None:
            self._admitted.remove(request_id)
            self._order.materialise(request_id)
            self.executed()
        waits_for = "admission" if self.holds_wave else self._order.waits_for()
        return FollowerLoopEffects(busy=self._next_ready() is not None, waits_for=waits_for)

    def executed(self) -> None:
        """The wave of the latest turn is executed: from now on, the thread waits for work."""
        self._idle_since = self._timeline.now()

    def _next_ready(self) -> str | None:
        """The first to materialise; those that are not ready wait for a wave, after which there is another turn."""
        return next((each for each in self._admitted if self._order.ready(each)), None)

    def _trace_wait(self, wave: WaveHeader) -> None:
        ready = self._timeline.now()
        if ready - self._received > MIN_TRACED_WAIT_NS:
            self._timeline.record("loop", "wait for admission", self._received, ready, wave.wave_id)
