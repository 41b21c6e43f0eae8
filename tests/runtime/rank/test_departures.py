"""How waves leave a rank before the last: at once, or when what they computed is in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import Activations, StageOutput
from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.departures import Departures
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave
from wavepp_worker.runtime.trace.timeline import Timeline

from tests.support.measured_wave import MeasuredWave
from tests.support.waiting import wait_until


class Bench:
    """``Departures`` over a data plane that keeps what is sent, as wave and seconds."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, tuple[float, ...]]] = []
        plane: Any = self
        self.departures = Departures(plane, Timeline(), 30.0, lambda error: None, Watched("departures"))

    def send_wave(self, header: WaveHeader, activations: Activations) -> None:
        del activations
        self.sent.append((header.wave_id, header.compute))

    def take(self, wave_id: int, done: Any) -> None:
        header = WaveHeader(wave_id=wave_id, spans=(), compute=(0.5,))
        self.departures.take(LaunchedWave(header, 0, (), StageOutput({}, None, done), 20.0))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.departures.close()


@pytest.mark.parametrize("done", [None, Ending(2**62)])
def test_what_is_there_or_says_itself_when_it_will_be_leaves_at_once(bench: Bench, done: Any) -> None:
    bench.take(0, done)
    assert bench.sent == [(0, (0.5,))]


def test_what_a_gpu_computes_leaves_when_it_is_there_in_launch_order(bench: Bench) -> None:
    first, second = MeasuredWave(2.0), MeasuredWave(3.0)
    bench.take(0, first)
    bench.take(1, second)
    second.end()
    assert bench.sent == []
    first.end()
    wait_until(lambda: len(bench.sent) == 2)
    assert bench.sent == [(0, (0.5, 2.0)), (1, (0.5, 3.0))]


def test_closing_lets_what_was_launched_leave(bench: Bench) -> None:
    wave = MeasuredWave(2.0)
    bench.take(0, wave)
    wave.end()
    bench.departures.close()
    assert len(bench.sent) == 1
