"""Which planner of waves a configuration asks for."""

from __future__ import annotations

from typing import Protocol

from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu
from wavepp_worker.runtime.planning.wave_cost import WaveCost


class WaveSettings(Protocol):
    """What a planner is made of; fields of ``EngineConfig`` and of ``RankConfig``."""

    @property
    def planner(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def min_num_batched_tokens(self) -> int | None: ...
    @property
    def wave_cost(self) -> tuple[float, float, float] | None: ...


def make_planner(config: WaveSettings, stages: int) -> Planner:
    """Rank 0's planner, for a pipeline of ``stages`` ranks.

    Raises:
        ConfigError: ``max_num_batched_tokens``, ``min_num_batched_tokens`` or ``wave_cost`` does not suit it.
    """
    block_size, max_num_seqs = config.block_size, config.max_num_seqs
    most = config.max_num_batched_tokens
    if config.planner == "greedy":
        return GreedyPlanner(most)
    share = 32 if config.planner == "mpu" else 2
    least = config.min_num_batched_tokens or max(block_size, most // share // block_size * block_size)
    if config.planner == "throttle":
        return ThrottlePlanner(
            waves=2 * stages,
            max_num_batched_tokens=most,
            min_num_batched_tokens=least,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
        )
    if config.planner == "two-budget":
        return TwoBudgetMpu(
            stages=stages, max_num_batched_tokens=most, block_size=block_size, max_num_seqs=max_num_seqs
        )
    if config.planner == "mpu-paper":
        return PaperMpu(P=stages, M=most, b_min=least, B=block_size, max_num_seqs=max_num_seqs)
    return Mpu(
        stages=stages,
        # Chunks end where blocks do, so tokens beyond the last whole block of a wave would never be used.
        max_num_batched_tokens=most // block_size * block_size or most,
        min_num_batched_tokens=least,
        block_size=block_size,
        cost=None if config.wave_cost is None else WaveCost(*config.wave_cost),
        max_num_seqs=max_num_seqs,
    )
