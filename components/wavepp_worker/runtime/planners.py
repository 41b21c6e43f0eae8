"""Which planner a configuration asks for."""

from __future__ import annotations

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.chunk_cost import ChunkCost
from wavepp_worker.runtime.mpu import PaperMpu, TwoBudgetMpu
from wavepp_worker.runtime.planner import GreedyPlanner, Planner
from wavepp_worker.runtime.rank_config import RankConfig
from wavepp_worker.runtime.throttle import ThrottlePlanner
from wavepp_worker.runtime.timed_mpu import TimedMpu


def make_planner(config: RankConfig) -> Planner:
    """Rank 0's planner.

    Raises:
        ConfigError: ``chunk``, ``min_chunk`` or ``chunk_cost`` does not suit it.
    """
    block, chunk, lanes = config.block, config.chunk, config.max_batch
    if config.planner == "greedy":
        return GreedyPlanner(chunk)
    least = config.min_chunk or max(block, chunk // (32 if config.planner == "mpu" else 2) // block * block)
    if config.planner == "throttle":
        return ThrottlePlanner(T=2 * config.ranks, max_p=chunk, min_p=least, B=block, max_batch=lanes)
    if config.planner == "two-budget":
        return TwoBudgetMpu(P=config.ranks, M=chunk, B=block, max_batch=lanes)
    if config.planner == "mpu-paper":
        return PaperMpu(P=config.ranks, M=chunk, b_min=least, B=block, max_batch=lanes)
    if config.chunk_cost is None:
        raise ConfigError(
            "planner=mpu sizes waves by time and needs chunk_cost, the seconds a stage takes: per wave, per token, "
            "and per token and token of context, e.g. 0.002,0.0001,0; or set planner to mpu-paper"
        )
    cost = ChunkCost(*config.chunk_cost)
    return TimedMpu(P=config.ranks, M=chunk, b_min=least, B=block, cost=cost, max_batch=lanes)
