"""The LOOP thread of rank 0: plans waves from admitted lanes and keeps the ring supplied."""

from __future__ import annotations

from collections import OrderedDict

import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.boundary import SchedulingBoundary
from wavepp_worker.runtime.data_plane import DataPlane
from wavepp_worker.runtime.executor import Executor
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.planner import Lane, Planner
from wavepp_worker.runtime.protocol import WaveDone, WaveHeader
from wavepp_worker.runtime.ring import Ring
from wavepp_worker.runtime.threads import Inbox, LaneAborted, LaneAdmitted, LaneEnded


class LeaderLoop:
    """Schedules without waiting for other ranks: only the ring bounds how far rank 0 runs ahead."""

    def __init__(
        self,
        state: LocalState,
        executor: Executor,
        plane: DataPlane,
        boundary: SchedulingBoundary,
        planner: Planner,
        inbox: Inbox[LaneAdmitted | LaneAborted],
        wave_thread: Inbox[LaneEnded],
    ) -> None:
        self._state = state
        self._executor = executor
        self._plane = plane
        self._boundary = boundary
        self._planner = planner
        self._inbox = inbox
        self._wave_thread = wave_thread
        self._ring = Ring(2 * state.config.ranks)
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._aborted: set[str] = set()

    def run(self) -> None:
        """Plan and execute until the rank stops."""
        poller = zmq.Poller()
        poller.register(self._plane.socket, zmq.POLLIN)
        poller.register(self._inbox.socket, zmq.POLLIN)
        while not self._state.stopping.is_set():
            runnable = bool(self._lanes) and not self._ring.full
            poller.poll(0 if runnable else 100)
            self._take_completions()
            with self._boundary.executing(self._state.config.wait):
                self._take_lanes()
                if not self._ring.full:
                    self._launch()

    def _launch(self) -> None:
        spans = self._planner.plan(self._lanes.values())
        if not spans:
            return
        wave_id = self._ring.launch(spans)
        for span in spans:
            if span.last:
                del self._lanes[span.request_id]
        self._executor.execute(WaveHeader(wave_id=wave_id, spans=spans), {})
        if self._state.config.last:
            self._complete(wave_id)

    def _take_completions(self) -> None:
        while self._plane.socket.poll(0):
            message, _ = self._plane.receive()
            if not isinstance(message, WaveDone):
                raise PositionMismatch(f"rank 0 expected the end of a wave, got {message}")
            self._complete(message.wave_id)

    def _complete(self, wave_id: int) -> None:
        for span in self._ring.complete(wave_id):
            if self._ring.carries(span.request_id):
                continue
            if span.request_id in self._aborted:
                self._aborted.discard(span.request_id)
                self._wave_thread.put(LaneEnded(span.request_id, aborted=True))
            elif span.last:
                self._wave_thread.put(LaneEnded(span.request_id, aborted=False))

    def _take_lanes(self) -> None:
        for event in self._inbox.take():
            match event:
                case LaneAdmitted(request_id, start, end):
                    self._lanes[request_id] = Lane(request_id, start, end)
                case LaneAborted(request_id):
                    self._lanes.pop(request_id, None)
                    if self._ring.carries(request_id):
                        self._aborted.add(request_id)
                    else:
                        self._wave_thread.put(LaneEnded(request_id, aborted=True))
