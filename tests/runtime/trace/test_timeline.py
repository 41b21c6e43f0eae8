from __future__ import annotations

import pytest
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.trace.slices import Slice
from wavepp_worker.runtime.trace.timeline import OFF, Timeline


def test_a_recorder_keeps_the_latest_and_counts_the_rest() -> None:
    now = iter(range(1000))
    timeline = Timeline(limit=3, clock=lambda: next(now))
    for index in range(5):
        with timeline.span("loop", f"s{index}", index, [Admit("a", 3), "b"]):
            pass
    taken, dropped = timeline.take()
    assert (taken, dropped) == (
        [Slice("loop", f"s{index}", 2 * index, 2 * index + 1, index, ("a", "b")) for index in (2, 3, 4)],
        2,
    )
    assert timeline.take() == ([], 0)
    with pytest.raises(KeyError), timeline.span("loop", "fails"):
        raise KeyError
    assert [each.name for each in timeline.take()[0]] == ["fails"]
    OFF.record("loop", "nothing", 0, 1)
    with OFF.span("loop", "nothing"):
        assert OFF.now() == 0
    assert OFF.take() == ([], 0)
