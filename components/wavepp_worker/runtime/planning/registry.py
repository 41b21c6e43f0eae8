"""Which planner of waves a configuration asks for."""

from __future__ import annotations

from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.rank_config import RankConfig


def make_planner(config: RankConfig) -> Planner:
    """Rank 0's planner.

    Raises:
        ConfigError: ``chunk``, ``min_chunk`` or ``chunk_cost`` does not suit it.
    """
    block, chunk, lanes = config.block_size, config.max_num_batched_tokens, config.max_num_seqs
    if config.planner == "greedy":
        return GreedyPlanner(chunk)
    least = config.min_num_batched_tokens or max(
        block, chunk // (32 if config.planner == "mpu" else 2) // block * block
    )
    if config.planner == "throttle":
        return ThrottlePlanner(T=2 * config.ranks, max_p=chunk, min_p=least, B=block, max_batch=lanes)
    if config.planner == "two-budget":
        return TwoBudgetMpu(P=config.ranks, M=chunk, B=block, max_batch=lanes)
    if config.planner == "mpu-paper":
        return PaperMpu(P=config.ranks, M=chunk, b_min=least, B=block, max_batch=lanes)
    cost = None if config.wave_cost is None else WaveCost(*config.wave_cost)
    # Chunks end where blocks do, so tokens beyond the last whole block of a wave would never be used.
    whole = chunk // block * block or chunk
    return Mpu(P=config.ranks, M=whole, b_min=least, B=block, cost=cost, max_batch=lanes)
