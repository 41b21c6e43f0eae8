"""What an engine says of itself: what its configuration and its ranks' addresses tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.errors import EngineDead
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.runtime.client.kv_pools import pool_blocks, state_blocks, tier_blocks
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.worker_description import EngineDescription, RankDescription


def engine_description(
    config: EngineConfig, addresses: Sequence[RankAddress], pids: Sequence[int]
) -> EngineDescription:
    """What the ranks of an engine compute and hold.

    Args:
        addresses: of the ranks that hand KV off, in rank order.
        pids: process ids of all ranks, in rank order.

    Raises:
        EngineDead: the engine hands nothing off, or its ranks are not ready.
    """
    if len(addresses) != config.pp:
        raise EngineDead("only ranks that are ready to hand KV off can be described")
    pools = zip(addresses, pool_blocks(config), tier_blocks(config), state_blocks(config), pids, strict=True)
    return EngineDescription(
        role="prefill",
        dtype=addresses[0].dtype,
        device=config.device,
        transport=addresses[0].transport,
        ranks=tuple(
            RankDescription(
                layers=address.layers[1] - address.layers[0],
                kv_tokens=blocks * config.block_size,
                bytes_per_token=address.bytes_per_token,
                host_tokens=tiers[0] * config.block_size,
                disk_tokens=tiers[1] * config.block_size,
                pid=pid,
                states=states[0] if address.state_bytes else 0,
                state_bytes=address.state_bytes,
            )
            for address, blocks, tiers, states, pid in pools
        ),
    )
