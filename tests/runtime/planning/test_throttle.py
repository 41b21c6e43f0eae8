from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner

from tests.support.planning import BLOCK_SIZE, lanes, shape


def throttle(least: int) -> ThrottlePlanner:
    return ThrottlePlanner(
        waves=8, max_num_batched_tokens=128, min_num_batched_tokens=least, block_size=BLOCK_SIZE
    )


def test_throttling_spreads_the_waiting_tokens() -> None:
    planner = throttle(least=32)
    assert planner.budget(PipelineView(lanes(500, 300))) == 100
    assert planner.budget(PipelineView(lanes(100))) == 32
    assert planner.budget(PipelineView(lanes(8000))) == 128
    assert shape(planner.propose(PipelineView(lanes(500, 300)))) == [("r0", 0, 96)]
    with pytest.raises(ConfigError, match="min_num_batched_tokens"):
        throttle(least=8)
