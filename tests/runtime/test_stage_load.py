"""How busy the stages were, as an average that forgets."""

from __future__ import annotations

import math

import pytest
from wavepp_worker.runtime.stage_load import MEMORY, StageLoad


def test_a_stage_that_is_busy_for_a_share_of_the_time_has_that_load() -> None:
    load = StageLoad()
    load.at(100.0)
    for step in range(1, 400):
        load.executed(0.03)
        load.at(100.0 + 0.1 * step)
    assert load.busy == pytest.approx(0.3, abs=1e-3)


def test_what_happened_is_forgotten() -> None:
    load = StageLoad()
    load.at(0.0)
    load.executed(1.0)
    assert load.at(1.0) == pytest.approx(1 - math.exp(-1 / MEMORY))
    before = load.busy
    assert load.at(1.0) == before, "no time has passed"
    assert load.at(1.0 + MEMORY) == pytest.approx(before / math.e)


def test_waves_that_end_at_one_moment_count_over_the_time_they_took() -> None:
    load = StageLoad()
    load.at(0.0)
    for _ in range(3):
        load.executed(5.0)
    assert load.at(10.0) == 1.0, "never more than all of the time"
