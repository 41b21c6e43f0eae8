"""The LOOP thread of every rank: carries messages between its turns, the data plane and the WAVE thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import Activations
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import (
    LaneMessage,
    LaneProgress,
)
from wavepp_worker.runtime.protocol.waves import WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.rank.loop_turn import FollowerLoop, LeaderLoop
from wavepp_worker.runtime.state.reports import RankReports

LONGEST_POLL_MS = 100
"""Milliseconds after which a loop looks whether it shall stop."""
_TURN = "its turn between two waves"


class LeaderLoopThread:
    """Rank 0: what the data plane brings are the ends of waves."""

    def __init__(
        self,
        loop: LeaderLoop,
        executor: Executor,
        plane: DataPlane,
        gate: WaveGate,
        from_wave: Inbox[LaneMessage],
        to_wave: Inbox[LaneProgress],
        reports: RankReports,
        watched: Watched,
        turn_seconds: float,
    ) -> None:
        """``turn_seconds``: that a turn may take before the thread counts as hung, without the wave it launches."""
        self._loop = loop
        self._executor = executor
        self._plane = plane
        self._gate = gate
        self._from_wave = from_wave
        self._to_wave = to_wave
        self._reports = reports
        self._watched = watched
        self._turn_seconds = turn_seconds

    def run(self, stopping: threading.Event) -> None:
        """Plan and execute until the rank stops.

        Raises:
            PositionMismatch: something else than the end of the oldest wave arrived.
        """
        poller = zmq.Poller()
        poller.register(self._plane.socket, zmq.POLLIN)
        poller.register(self._from_wave.socket, zmq.POLLIN)
        busy = False
        while not stopping.is_set():
            self._watched.idle()
            poller.poll(0 if busy else self._patience_ms())
            self._tell(self._loop.complete(self._ended_waves()))
            with self._gate.executing():
                self._watched.busy(_TURN, self._turn_seconds)
                effects = self._loop.turn(
                    self._from_wave.take(), self._executor.device.left(), time.monotonic()
                )
                self._tell(effects.progress)
                self._reports.in_flight(self._loop.in_flight)
                self._reports.send(*effects.explained)
                if effects.wave is not None:
                    self._executor.execute(effects.wave, {})
                    self._loop.executed()
                else:
                    self._executor.waits_for(effects.waits_for)
            busy = effects.busy

    def _patience_ms(self) -> int:
        due = self._loop.next_launch(self._executor.device.left())
        return LONGEST_POLL_MS if due is None else min(LONGEST_POLL_MS, math.ceil(1000 * due))

    def _ended_waves(self) -> list[WaveDone]:
        ended = []
        while self._plane.socket.poll(0):
            message, _ = self._plane.receive()
            if not isinstance(message, WaveDone):
                raise PositionMismatch(f"rank 0 expected the end of a wave, got {message}")
            ended.append(message)
        return ended

    def _tell(self, progress: Iterable[LaneProgress]) -> None:
        for each in progress:
            self._to_wave.put(each)


class FollowerLoopThread:
    """Ranks 1 … P-1: what the data plane brings are waves with their activations."""

    def __init__(
        self,
        loop: FollowerLoop,
        executor: Executor,
        plane: DataPlane,
        gate: WaveGate,
        from_wave: Inbox[str],
        watched: Watched,
        turn_seconds: float,
    ) -> None:
        """``turn_seconds``: as of ``LeaderLoopThread``."""
        self._loop = loop
        self._executor = executor
        self._plane = plane
        self._gate = gate
        self._from_wave = from_wave
        self._watched = watched
        self._turn_seconds = turn_seconds

    def run(self, stopping: threading.Event) -> None:
        """Execute the waves that arrive, until the rank stops.

        Raises:
            PositionMismatch: what arrived is not the wave that comes next.
        """
        poller = zmq.Poller()
        poller.register(self._plane.socket, zmq.POLLIN)
        poller.register(self._from_wave.socket, zmq.POLLIN)
        activations: Activations = {}
        busy = False
        while not stopping.is_set():
            patience = 0 if busy else LONGEST_POLL_MS
            wave: WaveHeader | None = None
            self._watched.idle()
            if self._loop.holds_wave:
                self._from_wave.socket.poll(patience)
            elif self._plane.socket in dict(poller.poll(patience)):
                message, activations = self._plane.receive()
                if not isinstance(message, WaveHeader):
                    raise PositionMismatch(f"expected a wave, got {message}")
                wave = message
            self._watched.busy(_TURN, self._turn_seconds)
            effects = self._loop.turn(wave, self._from_wave.take(), time.monotonic())
            if effects.wave is not None:
                self._watched.idle()
                with self._gate.executing():
                    self._executor.execute(effects.wave, activations)
                activations = {}
                self._loop.executed()
            else:
                self._executor.waits_for(effects.waits_for)
            busy = effects.busy
