"""Planners of waves for simulated ranks."""

from __future__ import annotations

import random

from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.wave_cost import WaveCost


def draw_planner(draw: random.Random, ranks: int, chunk: int, block: int, lanes: int) -> Planner:
    """Most fill their waves; some wait for more work while there is some on the device."""
    kind = draw.choice(("greedy", "greedy", "greedy", "mpu", "paper"))
    most = max(block, chunk // block * block)
    if kind == "mpu":
        return Mpu(
            stages=ranks,
            max_num_batched_tokens=most,
            min_num_batched_tokens=block,
            block_size=block,
            cost=WaveCost(a=0.001, b=0.0005, c=0.00001),
            max_num_seqs=lanes,
        )
    if kind == "paper":
        return PaperMpu(P=ranks, M=most, b_min=block, B=block, max_num_seqs=lanes)
    return GreedyPlanner(chunk)
