"""From a configuration to one ``RankConfig`` per rank, checked before any process starts."""

from __future__ import annotations

from pathlib import Path

from wavepp_worker.model.dtype_choice import dtype_name
from wavepp_worker.model.kv.layer_cache import keeping_everything
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.model.partition import partition_layers
from wavepp_worker.runtime.client.config_checks import (
    activations_of,
    check_planner,
    check_timeline,
    order_of,
    ownership_of,
    transport_of,
)
from wavepp_worker.runtime.client.kv_pools import (
    check_recurrent,
    headroom_blocks,
    pool_blocks,
    rank_0_blocks,
    snapshot_interval,
    state_blocks,
    tier_blocks,
)
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.rank_config import RankConfig

WAIT_SECONDS = 120.0
"""Bound of every wait inside a worker: a rank that makes its peers wait longer counts as dead."""
WAVE_TIMEOUTS_PER_WAIT = 2
"""Who waits for another rank waits longer than that rank may be hung: it knows less of what happened."""

POOLS_PASSED = 2
"""Default of ``order_max_passed_tokens``, in pools: with one, requests of 8 prefixes of which 6 fit cannot all run
together with their like."""


def rank_configs(
    config: EngineConfig, info: ModelInfo, run_dir: Path, key_secret_id: str = ""
) -> list[RankConfig]:
    """The ranks' configurations, with their sockets under ``run_dir``.

    ``key_secret_id``: see ``RankConfig``.

    Raises:
        ConfigError: the partition, the hand-off, the way of activations or the timeline cannot work.
    """
    check_timeline(config)
    layers = partition_layers(info, config.pp, config.partition)
    transport, activations = transport_of(config), activations_of(config)
    dtype = dtype_name(config.dtype, info.dtype, config.device)
    blocks = pool_blocks(config)
    check_recurrent(config, info.caches)
    tiers, states = tier_blocks(config), state_blocks(config)
    blocks[0], tiers[0] = rank_0_blocks(blocks, tiers)
    attend = keeping_everything(info.caches, layers)
    ownership = ownership_of(config)
    order = order_of(config, ownership)
    max_passed = config.order_max_passed_tokens
    if max_passed is None:
        max_passed = POOLS_PASSED * config.block_size * min(blocks)

    def address(name: str) -> str:
        return f"ipc://{run_dir}/{name}"

    configs = [
        RankConfig(
            rank=rank,
            ranks=config.pp,
            model=str(config.model),
            model_id=info.model_id,
            lora_modules=config.lora_modules,
            layers=(layers[rank].start, layers[rank].stop),
            dtype=dtype,
            kv_dtype=config.kv_dtype,
            device=config.device,
            threads=config.threads,
            block_size=config.block_size,
            blocks=blocks[rank],
            riders=all(cache.policy == "full" for cache in info.caches),
            keeps_keys=rank == 0 and bool(attend) and 0 not in attend,
            host_blocks=tiers[rank][0],
            disk_blocks=tiers[rank][1],
            state_blocks=states[rank][0],
            host_state_blocks=states[rank][1],
            disk_state_blocks=states[rank][2],
            snapshot_interval=snapshot_interval(config),
            disk_path=str(config.disk_path or ""),
            key_secret_id=key_secret_id,
            admission=config.admission,
            ownership=ownership,
            headroom_blocks=headroom_blocks(config, blocks[rank]),
            order=order,
            order_max_passed_tokens=max_passed,
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
            activations=activations,
            or_socket=config.activations == "auto",
            meeting=str(run_dir / "meeting"),
            timeline=str(run_dir / f"timeline-{rank}") if config.timeline else "",
            wait=max(WAIT_SECONDS, WAVE_TIMEOUTS_PER_WAIT * config.wave_timeout),
            wave_timeout=config.wave_timeout,
            first_wave_timeout=config.start_timeout,
        )
        for rank in range(config.pp)
    ]
    check_planner(config)
    return configs
