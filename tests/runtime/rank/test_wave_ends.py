"""The thread that waits for a device's waves: what it adds, and records. ``test_answers`` has the rest."""

from __future__ import annotations

from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import StageOutput
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave, WaveEnds
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import Timeline

from tests.support.measured_wave import MeasuredWave
from tests.support.waiting import wait_until


def test_a_wave_is_waited_for_as_long_as_all_ranks_may_take_and_then_has_its_seconds() -> None:
    ended: list[LaunchedWave] = []
    watched, timeline = Watched("ends"), Timeline()
    ends = WaveEnds(timeline, 30.0, lambda error: None, watched, ended.append)
    wave, before = MeasuredWave(0.002), timeline.now()
    header = WaveHeader(wave_id=7, spans=(), compute=(0.5,))
    ends.take(LaunchedWave(header, before - 10**9, (), StageOutput({}, None, wave), 20.0))
    wait_until(lambda: watched.step is not None)
    assert watched.step is not None
    assert (watched.step.what, watched.step.seconds) == ("the device's end of wave 7", 40.0)
    assert ended == []
    wave.end()
    ends.close()
    assert [each.header.compute for each in ended] == [(0.5, 0.002)]
    (slice_,) = (each for each in timeline.take()[0] if (each.track, each.name) == ("device", FORWARD))
    assert slice_.end - slice_.start == 2_000_000, "as long as the device says, not since the launch"
