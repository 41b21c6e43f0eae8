"""Rank 0's LOOP thread alone: how far it runs ahead, and when it reports a request as over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import zmq
from wavepp_worker.model.virtual_device import Ending
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneAdvance,
    LaneEnded,
    LaneStarted,
)
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.device_queue import DeviceQueue
from wavepp_worker.runtime.rank.leader_loop import LeaderLoop
from wavepp_worker.runtime.trace.timeline import OFF


class Harness:
    """A LeaderLoop whose executor only notes the waves; the test plays the last rank."""

    def __init__(self, ranks: int, max_batch: int = 8) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.launched: list[tuple[Span, ...]] = []
        self.done: list[WaveDone] = []
        self.rounds_left = 0
        config = SimpleNamespace(ranks=ranks, last=False, wait=5.0)
        stopping = SimpleNamespace(is_set=self._count_down)
        state: Any = SimpleNamespace(config=config, stopping=stopping, timeline=OFF)
        self.materialised: list[str] = []
        self.device, self.wave_seconds = DeviceQueue(), 0.0
        executor: Any = SimpleNamespace(
            execute=self._execute, materialise=self._materialise, device=self.device
        )
        pending = self.context.socket(zmq.PULL)
        pending.bind("inproc://data")
        self.bell = self.context.socket(zmq.PUSH)
        self.bell.connect("inproc://data")
        plane: Any = SimpleNamespace(socket=pending, receive=self._receive)
        self.pending = pending
        self.to_loop: Inbox[LaneAdmitted | LaneAborted] = Inbox(self.context, "loop")
        self.to_wave: Inbox[LaneAdvance] = Inbox(self.context, "wave")
        self.lanes = Lanes(Ring(2 * ranks), GreedyPlanner(8), max_batch)
        self.loop = LeaderLoop(
            state, executor, plane, WaveGate(), self.lanes, self.to_loop, self.to_wave, lambda: 0
        )

    def turn(self, times: int = 8) -> None:
        """Let the loop go round."""
        self.rounds_left = times
        self.to_loop.put(LaneAborted("wake up"))
        self.loop.run()
        self.lanes.check()

    def complete(self, wave_id: int) -> None:
        self.done.append(WaveDone(wave_id=wave_id))
        self.bell.send(b"")

    def ended(self) -> list[LaneAdvance]:
        events = self.to_wave.take()
        return [event for event in events if isinstance(event, LaneEnded) and event.request_id != "wake up"]

    def close(self) -> None:
        self.context.destroy(linger=0)

    def _count_down(self) -> bool:
        self.rounds_left -= 1
        return self.rounds_left < 0

    def _materialise(self, request_id: str) -> bool:
        if request_id in self.materialised:
            return False
        self.materialised.append(request_id)
        return True

    def _execute(self, header: WaveHeader, _: dict[str, Any]) -> None:
        assert header.wave_id == len(self.launched)
        self.launched.append(header.spans)
        if self.wave_seconds:
            self.device.launched(Ending(time.monotonic_ns() + round(1e9 * self.wave_seconds)))

    def _receive(self) -> tuple[WaveDone, dict[str, Any]]:
        self.pending.recv()
        return self.done.pop(0), {}


def test_successive_chunks_of_one_request_fill_the_ring_and_no_more() -> None:
    """Promise 14: R = 2P waves in flight without waiting for any result, then one more per completion."""
    harness = Harness(ranks=3)
    harness.to_loop.put(LaneAdmitted("long", 0, 100))
    harness.turn()
    assert [spans[0].start for spans in harness.launched] == [0, 8, 16, 24, 32, 40]
    harness.complete(0)
    harness.turn()
    assert len(harness.launched) == 7
    harness.close()


def test_a_device_that_runs_behind_the_host_is_kept_one_wave_ahead() -> None:
    """The next wave is planned when one ends on rank 0, although the ring has room for more."""
    harness = Harness(ranks=3)
    harness.wave_seconds = 60.0
    harness.to_loop.put(LaneAdmitted("long", 0, 100))
    harness.turn()
    assert len(harness.launched) == 2
    harness.device.left = lambda: [0.05]  # type: ignore[method-assign]
    harness.turn(times=2)
    assert len(harness.launched) > 2
    harness.close()


def test_an_aborted_request_is_over_only_when_no_wave_carries_it() -> None:
    """S30: with several chunks in flight; nothing more of it is scheduled, others go on."""
    harness = Harness(ranks=1)
    harness.to_loop.put(LaneAdmitted("gone", 0, 80))
    harness.to_loop.put(LaneAdmitted("stays", 0, 8))
    harness.turn()
    assert len(harness.launched) == 2
    harness.to_loop.put(LaneAborted("gone"))
    harness.turn()
    assert harness.ended() == []
    harness.complete(0)
    harness.turn()
    assert harness.ended() == []
    assert harness.launched[2][0].request_id == "stays"
    harness.complete(1)
    harness.turn()
    assert harness.ended() == [LaneEnded("gone", aborted=True)]
    harness.complete(2)
    harness.turn()
    assert harness.ended() == [LaneEnded("stays", aborted=False)]
    harness.close()


def test_aborting_a_request_the_loop_does_not_know_is_reported_at_once() -> None:
    """S33: finished long ago, or never admitted here."""
    harness = Harness(ranks=2)
    harness.to_loop.put(LaneAborted("unknown"))
    harness.turn()
    assert harness.ended() == [LaneEnded("unknown", aborted=True)]
    harness.close()


def test_a_lease_is_materialised_when_its_lane_has_a_place_in_the_waves() -> None:
    """Ahead of its first wave while the ring is full, but not beyond the batch: a lease waits with less."""
    harness = Harness(ranks=1, max_batch=2)
    for name in ("first", "second", "third"):
        harness.to_loop.put(LaneAdmitted(name, 0, 24))
    harness.turn()
    assert len(harness.launched) == 2
    assert harness.materialised == ["first", "second"]
    started = [event.request_id for event in harness.to_wave.take() if isinstance(event, LaneStarted)]
    assert started == ["first", "second"]
    harness.complete(0)
    harness.turn()
    assert harness.materialised == ["first", "second", "third"]
    harness.close()
