"""From a configuration to one ``RankConfig`` per rank, checked before any process starts."""

from __future__ import annotations

import os
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.transport import resolve_transport
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.model.partition import partition_layers
from wavepp_worker.model.stage_loader import resolve_dtype
from wavepp_worker.model.timed_model import is_timed
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.rank_config import RankConfig

WAIT_SECONDS = 120.0
"""Bound of every wait inside a worker: a rank that makes its peers wait longer counts as dead."""


def pool_blocks(config: EngineConfig) -> list[int]:
    """KV blocks of each rank's device.

    Raises:
        ConfigError: ``kv_tokens`` names another number of ranks, or less than one block.
    """
    tokens = _per_rank(config, "kv_tokens")
    for rank, amount in enumerate(tokens):
        if amount < config.block_size:
            raise ConfigError(
                f"kv_tokens gives rank {rank} {amount} tokens, less than one block of {config.block_size}; "
                "raise kv_tokens or lower block_size"
            )
    return [amount // config.block_size for amount in tokens]


def tier_blocks(config: EngineConfig) -> list[tuple[int, int]]:
    """Blocks of each rank's host tier and disk tier.

    Raises:
        ConfigError: the lists name another number of ranks, a tier is less than nothing, or there is a disk
            tier and no place for it.
    """
    tiers = []
    for key in ("host_kv_tokens", "disk_kv_tokens"):
        tokens = _per_rank(config, key)
        if min(tokens) < 0:
            raise ConfigError(f"{key} is {min(tokens)} for some rank; it is 0 or more")
        tiers.append([amount // config.block_size for amount in tokens])
    if any(tiers[1]) and config.disk_path is None:
        raise ConfigError("disk_kv_tokens asks for a disk tier, but disk_path is not set; name a directory")
    return list(zip(*tiers, strict=True))


def check_timeline(config: EngineConfig) -> None:
    """Raise ConfigError unless the timeline can be written where it shall be."""
    path = config.timeline
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"timeline is {path}, which is a directory; name a file in it")
    parent = path.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"timeline is {path}, but {parent} is not a directory that can be written to; make it, or name a "
            "file elsewhere"
        )


def _per_rank(config: EngineConfig, key: str) -> list[int]:
    value: int | tuple[int, ...] = getattr(config, key)
    per_rank = [value] * config.pp if isinstance(value, int) else list(value)
    if len(per_rank) != config.pp:
        raise ConfigError(
            f"{key} lists {len(per_rank)} pools for pp={config.pp} ranks; give one number, or one per rank"
        )
    return per_rank


def headroom_blocks(config: EngineConfig, blocks: int) -> int:
    """Blocks that requests being prepared leave alone: ``2 P M`` tokens (paper, section 4.4).

    At most a 32nd of the pool: a committed escrow keeps its room whatever others do, so no victim has to be
    substituted out of the headroom, and a small pool is better used than kept free.
    """
    return min(-(-2 * config.pp * config.max_num_batched_tokens // config.block_size), blocks // 32)


def longest_prompt(config: EngineConfig, info: ModelInfo) -> int:
    """The longest prompt this worker accepts, in tokens.

    Raises:
        ConfigError: ``max_model_len`` exceeds the model's context, or some rank's pool cannot hold one such
            prompt.
    """
    longest = config.max_model_len or info.context_length
    if longest > info.context_length:
        raise ConfigError(
            f"max_model_len is {longest}, but the model's context length is {info.context_length}; "
            "lower max_model_len"
        )
    for rank, blocks in enumerate(pool_blocks(config)):
        if blocks * config.block_size < longest:
            raise ConfigError(
                f"kv_tokens gives rank {rank} a pool of {blocks * config.block_size} tokens, too small for one "
                f"request of {longest} tokens; raise kv_tokens or set max_model_len to at most "
                f"{blocks * config.block_size}"
            )
    return longest


def rank_configs(config: EngineConfig, info: ModelInfo, run_dir: Path) -> list[RankConfig]:
    """The ranks' configurations, with their sockets under ``run_dir``.

    Raises:
        ConfigError: the partition, the hand-off or the timeline cannot work.
    """
    check_timeline(config)
    layers = partition_layers(info, config.pp, config.partition)
    transport = resolve_transport(config.handoff)
    if transport != "none" and is_timed(config.model):
        raise ConfigError(
            f"handoff is {config.handoff}, but {config.model} is a timed model and computes no KV to hand over; set "
            "handoff to none, or model to one with weights"
        )
    dtype = str(resolve_dtype(config.dtype, info, config.device)).removeprefix("torch.")
    blocks = pool_blocks(config)
    tiers = tier_blocks(config)
    ownership = config.ownership
    if ownership == "auto":
        ownership = "lease" if config.admission == "wave" else "none"
    if config.admission == "lockstep" and ownership == "lease":
        raise ConfigError(
            "ownership=lease needs admission=wave: lockstep admission allocates while the executors are "
            "paused; set ownership to none, or admission to wave"
        )

    def address(name: str) -> str:
        return f"ipc://{run_dir}/{name}"

    configs = [
        RankConfig(
            rank=rank,
            ranks=config.pp,
            model=str(config.model),
            model_id=info.model_id,
            layers=(layers[rank].start, layers[rank].stop),
            dtype=dtype,
            device=config.device,
            threads=config.threads,
            block_size=config.block_size,
            blocks=blocks[rank],
            host_blocks=tiers[rank][0],
            disk_blocks=tiers[rank][1],
            disk_path=str(config.disk_path or ""),
            admission=config.admission,
            ownership=ownership,
            headroom=headroom_blocks(config, blocks[rank]),
            round_delay=config.round_delay,
            max_num_batched_tokens=config.max_num_batched_tokens,
            min_num_batched_tokens=config.min_num_batched_tokens,
            planner=config.planner,
            wave_cost=config.wave_cost,
            max_num_seqs=config.max_num_seqs,
            host=config.host,
            handoff=transport,
            handoff_timeout=config.handoff_timeout,
            commands=address("commands"),
            events=address("events"),
            rounds=tuple(address(f"rounds-{follower}") for follower in range(1, config.pp)),
            data=tuple(address(f"data-{receiver}") for receiver in range(config.pp)),
            timeline=str(run_dir / f"timeline-{rank}") if config.timeline else "",
            wait=WAIT_SECONDS,
        )
        for rank in range(config.pp)
    ]
    make_planner(configs[0])
    return configs
