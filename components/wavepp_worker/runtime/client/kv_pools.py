"""How many KV blocks each rank has, on its device and below, and which prompt fits in them."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import DEFAULT_POOL_TOKENS
from wavepp_worker.model.context_limit import within_context
from wavepp_worker.model.kv.layer_cache import LayerCache, token_bytes, window_bytes
from wavepp_worker.model.kv.window_pool import tier_bytes
from wavepp_worker.model.timed.timed_model import is_timed
from wavepp_worker.runtime.protocol.engine_config import EngineConfig

SNAPSHOT_TOKENS = 1024
"""Default of ``snapshot_interval``, up to the next multiple of the block size."""
LEAST_SNAPSHOTS = 2
"""Of a small pool: the one that a request resumes from, and the one that it leaves."""


def pool_blocks(config: EngineConfig) -> list[int]:
    """KV blocks of each rank's device.

    Raises:
        ConfigError: ``kv_tokens`` names another number of ranks, or less than one block.
    """
    tokens = per_rank(config, "kv_tokens")
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
        ConfigError: the lists name another number of ranks, or there is a disk tier and no place for it, or
            a place and no tier.
    """
    tiers = []
    for key in ("host_kv_tokens", "disk_kv_tokens"):
        tokens = per_rank(config, key)
        tiers.append([amount // config.block_size for amount in tokens])
    if any(tiers[1]) and config.disk_path is None:
        raise ConfigError("disk_kv_tokens asks for a disk tier, but disk_path is not set; name a directory")
    if config.disk_path is not None and not any(tiers[1]):
        raise ConfigError(
            f"disk_path is {config.disk_path}, but disk_kv_tokens is less than one block, so that there would be no "
            f"disk tier; set disk_kv_tokens to at least {config.block_size}, or leave disk_path out"
        )
    return list(zip(*tiers, strict=True))


def rank_0_blocks(blocks: Sequence[int], tiers: Sequence[tuple[int, int]]) -> tuple[int, tuple[int, int]]:
    """Of rank 0's blocks on the device and of those in its tiers, as many as some rank has in all.

    A prefix is reused as far as all ranks have it, so it loses nothing by that; and what it decides by what it has
    itself, as who is served first under pressure, holds for the others.
    """
    left = min(on_device + sum(below) for on_device, below in zip(blocks, tiers, strict=True))
    of_use = []
    for own in (blocks[0], *tiers[0]):
        of_use.append(min(own, left))
        left -= of_use[-1]
    on_device, in_host, on_disk = of_use
    return on_device, (in_host, on_disk)


def tier_bytes_of(config: EngineConfig, layers: Sequence[LayerCache], dtype: str, blocks: int) -> int:
    """Bytes of these layers in a tier of so many blocks below the device, without states."""
    return tier_bytes(token_bytes(layers, dtype), window_bytes(layers, dtype), blocks, config.block_size)


def snapshot_interval(config: EngineConfig) -> int:
    """Tokens between two snapshots of recurrent layers.

    Raises:
        ConfigError: ``snapshot_interval`` is no multiple of the block size.
    """
    wanted = config.snapshot_interval
    whole = -(-(wanted or SNAPSHOT_TOKENS) // config.block_size) * config.block_size
    if wanted not in (None, whole):
        raise ConfigError(
            f"snapshot_interval: {wanted} is no multiple of block_size={config.block_size}, and only whole blocks can "
            f"be reused; make it {whole}"
        )
    return whole


def check_recurrent(config: EngineConfig, caches: Sequence[LayerCache]) -> None:
    """Refuse settings of recurrent layers for a model that has none.

    Args:
        caches: what each layer keeps; nothing if that cannot be told.

    Raises:
        ConfigError: ``snapshot_interval`` or ``state_blocks`` is given, and is not what it is by default.
    """
    known = bool(caches) or is_timed(config.model)
    if not known or not all(cache.per_token for cache in caches):
        return
    interval = config.snapshot_interval
    usual = snapshot_interval(config.model_copy(update={"snapshot_interval": None}))
    for key, given in (
        ("snapshot_interval", interval not in (None, usual)),
        ("state_blocks", config.state_blocks is not None),
    ):
        if given:
            raise ConfigError(
                f"{key}: {config.model} has no recurrent layers, of which there would be snapshots; leave it out"
            )


def state_blocks(config: EngineConfig) -> list[tuple[int, int, int]]:
    """States of recurrent layers of each rank: on its device, in host memory, on disk.

    Raises:
        ConfigError: as for ``snapshot_interval`` and ``per_rank``.
    """
    interval = snapshot_interval(config)
    if config.state_blocks is None:
        device = [
            config.max_num_seqs + max(LEAST_SNAPSHOTS, tokens // interval)
            for tokens in per_rank(config, "kv_tokens")
        ]
    else:
        device = per_rank(config, "state_blocks")
    below = [
        [-(-tokens // interval) for tokens in per_rank(config, key)]
        for key in ("host_kv_tokens", "disk_kv_tokens")
    ]
    return list(zip(device, *below, strict=True))


def headroom_blocks(config: EngineConfig, blocks: int) -> int:
    """Blocks that requests being prepared leave alone: ``2 P M`` tokens (paper, section 4.4).

    At most a 32nd of the pool: a committed escrow keeps its room whatever others do, so no victim has to be
    substituted out of the headroom, and a small pool is better used than kept free.
    """
    return min(-(-2 * config.pp * config.max_num_batched_tokens // config.block_size), blocks // 32)


def longest_prompt(config: EngineConfig, context_length: int) -> int:
    """The longest prompt this worker accepts, in tokens, of a model with that context.

    Raises:
        ConfigError: ``max_model_len`` exceeds the model's context, or some rank's pool cannot hold one such
            prompt.
    """
    longest = within_context(config.max_model_len, context_length)
    for rank, blocks in enumerate(pool_blocks(config)):
        if blocks * config.block_size < longest:
            raise ConfigError(
                f"kv_tokens gives rank {rank} a pool of {blocks * config.block_size} tokens, too small for one "
                f"request of {longest} tokens; raise kv_tokens or set max_model_len to at most "
                f"{blocks * config.block_size}"
            )
    return longest


def per_rank(config: EngineConfig, key: str) -> list[int]:
    """The tokens of each rank's pool of a kind.

    Args:
        key: the setting that says them.

    Raises:
        ConfigError: it names another number of ranks.
    """
    value: int | tuple[int, ...] | None = getattr(config, key)
    if value is None:
        value = DEFAULT_POOL_TOKENS
    pools = [value] * config.pp if isinstance(value, int) else list(value)
    if len(pools) != config.pp:
        raise ConfigError(
            f"{key} lists {len(pools)} pools for pp={config.pp} ranks; give one number, or one per rank"
        )
    return pools
