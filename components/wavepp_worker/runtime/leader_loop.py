"""The LOOP thread of rank 0: plans waves from admitted lanes and keeps the ring supplied."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.boundary import SchedulingBoundary
from wavepp_worker.runtime.data_plane import DataPlane
from wavepp_worker.runtime.executor import Executor
from wavepp_worker.runtime.lanes import Lanes
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.protocol import WaveDone, WaveHeader
from wavepp_worker.runtime.threads import Inbox, LaneAborted, LaneAdmitted, LaneAdvance, LaneStarted


class LeaderLoop:
    """Schedules without waiting for other ranks: only the ring bounds how far rank 0 runs ahead."""

    def __init__(
        self,
        state: LocalState,
        executor: Executor,
        plane: DataPlane,
        boundary: SchedulingBoundary,
        lanes: Lanes,
        inbox: Inbox[LaneAdmitted | LaneAborted],
        wave_thread: Inbox[LaneAdvance],
        admitting: Callable[[], int],
    ) -> None:
        """``admitting`` tells how many requests are not admitted yet."""
        self._state = state
        self._executor = executor
        self._plane = plane
        self._boundary = boundary
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
        while not self._state.stopping.is_set():
            poller.poll(0 if busy else 100)
            self._take_completions()
            with self._boundary.executing(self._state.config.wait):
                for event in self._inbox.take():
                    self._tell(self._lanes.take(event))
                busy = self._launch() or self._materialise(self._lanes.next_leased())

    def _launch(self) -> bool:
        spans = self._lanes.propose(self._admitting())
        if not spans:
            return False
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
            self._tell(self._lanes.complete(message.wave_id))

    def _tell(self, advances: Iterable[LaneAdvance]) -> None:
        for advance in advances:
            self._wave_thread.put(advance)
