"""From a configuration to one ``RankConfig`` per rank, checked before any process starts."""

from __future__ import annotations

from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.transport import resolve_transport
from wavepp_worker.model.info import ModelInfo
from wavepp_worker.model.load import resolve_dtype
from wavepp_worker.model.partition import partition_layers
from wavepp_worker.runtime.config import EngineConfig
from wavepp_worker.runtime.rank_config import RankConfig

WAIT_SECONDS = 120.0
"""Bound of every wait inside a worker: a rank that makes its peers wait longer counts as dead."""


def pool_blocks(config: EngineConfig) -> list[int]:
    """KV blocks of each rank.

    Raises:
        ConfigError: ``kv_tokens`` names another number of ranks, or less than one block.
    """
    tokens = config.kv_tokens
    per_rank = [tokens] * config.pp if isinstance(tokens, int) else list(tokens)
    if len(per_rank) != config.pp:
        raise ConfigError(
            f"kv_tokens lists {len(per_rank)} pools for pp={config.pp} ranks; "
            "give one number, or one per rank"
        )
    for rank, amount in enumerate(per_rank):
        if amount < config.block:
            raise ConfigError(
                f"kv_tokens gives rank {rank} {amount} tokens, less than one block of {config.block}; "
                "raise kv_tokens or lower block"
            )
    return [amount // config.block for amount in per_rank]


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
        if blocks * config.block < longest:
            raise ConfigError(
                f"kv_tokens gives rank {rank} a pool of {blocks * config.block} tokens, too small for one "
                f"request of {longest} tokens; raise kv_tokens or set max_model_len to at most "
                f"{blocks * config.block}"
            )
    return longest


def rank_configs(config: EngineConfig, info: ModelInfo, run_dir: Path) -> list[RankConfig]:
    """The ranks' configurations, with their sockets under ``run_dir``.

    Raises:
        ConfigError: the partition or the hand-off cannot work.
    """
    layers = partition_layers(info, config.pp, config.partition)
    transport = resolve_transport(config.handoff)
    dtype = str(resolve_dtype(config.dtype, info, config.device)).removeprefix("torch.")
    blocks = pool_blocks(config)

    def address(name: str) -> str:
        return f"ipc://{run_dir}/{name}"

    return [
        RankConfig(
            rank=rank,
            ranks=config.pp,
            model=str(config.model),
            model_id=info.model_id,
            layers=(layers[rank].start, layers[rank].stop),
            dtype=dtype,
            device=config.device,
            threads=config.threads,
            block=config.block,
            blocks=blocks[rank],
            chunk=config.chunk,
            max_batch=config.max_batch,
            host=config.host,
            handoff=transport,
            handoff_timeout=config.handoff_timeout,
            commands=address("commands"),
            events=address("events"),
            rounds=tuple(address(f"rounds-{follower}") for follower in range(1, config.pp)),
            data=tuple(address(f"data-{receiver}") for receiver in range(config.pp)),
            wait=WAIT_SECONDS,
        )
        for rank in range(config.pp)
    ]
