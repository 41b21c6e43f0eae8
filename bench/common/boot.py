"""How an engine, or a replica on the virtual clock, is configured for a system of the paper and a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wavepp_worker import EngineConfig

from bench.common.cells import CELLS
from bench.common.policies import POLICIES
from bench.common.systems import BLOCK, SYSTEMS, WAVE_TOKENS


def boot_config(
    model: str, policy: str, directory: Path, kv_tokens: int, round_delay: float = 0.0, **others: Any
) -> EngineConfig:
    """The configuration of one of ``SYSTEMS`` under one of ``POLICIES``.

    Args:
        directory: the timed model's.
        kv_tokens: tokens of KV of each rank.
        round_delay: seconds added to every admission round.
        others: further fields of the configuration.
    """
    system, switches = SYSTEMS[model], dict(POLICIES[policy])
    if switches["planner"] == "mpu-paper" and system.stages == 8:
        switches["planner"] = "two-budget"
    longest = max(shape.tokens for cell in CELLS if cell.model == model for shape in cell.shapes)
    return EngineConfig(
        model=directory,
        pp=system.stages,
        max_num_batched_tokens=WAVE_TOKENS,
        block_size=BLOCK,
        kv_tokens=kv_tokens,
        max_model_len=longest,
        max_num_seqs=128,
        round_delay=round_delay,
        **switches,
        **others,
    )
