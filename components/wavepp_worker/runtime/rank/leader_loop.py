"""The LOOP thread of rank 0: plans waves from admitted lanes and keeps the ring supplied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import LAUNCH_MARGIN_SECONDS
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import LaneAborted, LaneAdmitted, LaneAdvance, LaneStarted
from wavepp_worker.runtime.protocol.waves import WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.state.local_state import LocalState

LAUNCH_AHEAD = 2
"""Waves on rank 0's own device, where that runs behind the host: one that runs, and one behind it. A wave launched
earlier than that cannot take in what is admitted meanwhile."""
LONGEST_POLL = 100
"""Milliseconds after which the loop looks whether it shall stop."""


class LeaderLoop:
    """Schedules without waiting for other ranks: only the ring and rank 0's own device bound how far it runs ahead."""

    def __init__(
        self,
        state: LocalState,
        executor: Executor,
        plane: DataPlane,
        gate: WaveGate,
        lanes: Lanes,
        inbox: Inbox[LaneAdmitted | LaneAborted],
        wave_thread: Inbox[LaneAdvance],
        admitting: Callable[[], int],
    ) -> None:
        """``admitting`` tells how many requests are not admitted yet."""
        self._state = state
        self._executor = executor
        self._plane = plane
        self._gate = gate
        self._lanes = lanes
        self._inbox = inbox
        self._wave_thread = wave_thread
        self._admitting = admitting

    def run(self) -> None:
        """Plan and execute until the rank stops; materialise admitted requests while nothing can be launched."""
        poller = zmq.Poller()
        poller.register(self._plane.socket, zmq.POLLIN)
        poller.register(self._inbox.socket, zmq.POLLIN)
        busy = False
        since = self._state.timeline.now()
        while not self._state.stopping.is_set():
            poller.poll(0 if busy else self._patience())
            self._take_completions()
            with self._gate.executing(self._state.config.wait):
                for event in self._inbox.take():
                    self._tell(self._lanes.take(event))
                busy = self._launch(since) or self._materialise(self._lanes.next_leased())
            if busy:
                since = self._state.timeline.now()

    def _patience(self) -> int:
        """Milliseconds after which there may be something to launch although no message has come."""
        left = self._executor.device.left()
        if not left:
            return LONGEST_POLL
        due = left[0] if len(left) >= LAUNCH_AHEAD else left[-1] - LAUNCH_MARGIN_SECONDS
        return min(LONGEST_POLL, math.ceil(1000 * due)) if due > 0 else LONGEST_POLL

    def _launch(self, since: int) -> bool:
        timeline = self._state.timeline
        left = self._executor.device.left()
        if len(left) >= LAUNCH_AHEAD:
            return False
        begun = timeline.now()
        spans = self._lanes.propose(self._admitting(), left[-1] if left else 0.0)
        if not spans:
            return False
        timeline.record("loop", "wait", since, begun)
        timeline.record("loop", "plan", begun, timeline.now())
        for span in spans:
            self._materialise(span.request_id)
        wave_id, advances = self._lanes.launch(spans)
        self._tell(advances)
        self._executor.execute(WaveHeader(wave_id=wave_id, spans=spans), {})
        return True

    def _materialise(self, request_id: str | None) -> bool:
        if request_id is None:
            return False
        self._lanes.started(request_id)
        if self._executor.materialise(request_id):
            self._wave_thread.put(LaneStarted(request_id))
        return True

    def _take_completions(self) -> None:
        while self._plane.socket.poll(0):
            message, _ = self._plane.receive()
            if not isinstance(message, WaveDone):
                raise PositionMismatch(f"rank 0 expected the end of a wave, got {message}")
            self._tell(self._lanes.complete(message.wave_id, max(message.compute, default=0.0)))

    def _tell(self, advances: Iterable[LaneAdvance]) -> None:
        for advance in advances:
            self._wave_thread.put(advance)
