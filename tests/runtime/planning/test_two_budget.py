from __future__ import annotations

from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu

from tests.support.planning import BLOCK_SIZE, lanes, shape


def test_two_budgets_aim_at_one_pipeline_fill() -> None:
    planner = TwoBudgetMpu(stages=2, max_num_batched_tokens=64, block_size=BLOCK_SIZE)
    assert shape(planner.propose(PipelineView(lanes(128)))) == [("r0", 0, 64)]
    assert shape(planner.propose(PipelineView(lanes(127)))) == [("r0", 0, 32)]
