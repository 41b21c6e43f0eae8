"""Recording that is switched on and off while its rank runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.runtime.trace.recorder import Recorder
from wavepp_worker.runtime.trace.recording import read_recording

from tests.support.waiting import wait_until


def names(path: Path) -> list[str]:
    return [each.name for each in read_recording(path, 0).slices]


def test_only_what_happens_while_it_is_on_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder()
    timeline = recorder.timeline
    timeline.record("loop", "before", 0, 1)
    recorder.start(tmp_path / "one")
    timeline.record("loop", "during", 1, 2)
    with timeline.span("loop", "span"):
        pass
    with pytest.raises(ValueError, match="under way"):
        recorder.start(tmp_path / "two")
    recorder.stop()
    timeline.record("loop", "after", 2, 3)
    with timeline.span("loop", "no span"):
        pass
    recorder.stop()
    assert names(tmp_path / "one") == ["during", "span"]
    recorder.start(tmp_path / "three")
    recorder.stop()
    assert names(tmp_path / "three") == []


def test_a_recording_that_nobody_stops_ends_by_itself_and_leaves_the_next_alone(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.start(tmp_path / "one", seconds=0.02)
    recorder.timeline.record("loop", "during", 1, 2)
    wait_until(lambda: not recorder.timeline.on)
    recorder.start(tmp_path / "two", seconds=60)
    assert recorder.timeline.on
    recorder.stop()
    assert names(tmp_path / "one") == ["during"]


def test_what_cannot_be_written_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(OSError, match="No such file"):
        recorder.start(tmp_path / "nowhere" / "one")
    assert not recorder.timeline.on
    recorder.start(tmp_path / "one")
    recorder.stop()
