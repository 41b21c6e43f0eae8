"""How many tokens of KV each rank of an engine has where a fraction of what is free is asked for; what cannot fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.context_limit import within_context
from wavepp_worker.model.device.free_memory import free_memory
from wavepp_worker.model.device.placement import gpu_count
from wavepp_worker.model.dtype_choice import DTYPE_BYTES, dtype_name
from wavepp_worker.model.files.weight_sizes import has_weights, weight_sizes
from wavepp_worker.model.kv.kv_share import Share, activation_room, check_pool, share_out
from wavepp_worker.model.kv.layer_cache import LayerCache, state_bytes, token_bytes, window_bytes
from wavepp_worker.model.kv.window_pool import pool_bounds, window_pool
from wavepp_worker.model.lora import adapter_numbers
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.model.partition import check_partition
from wavepp_worker.runtime.client.kv_pools import per_rank, snapshot_interval, tier_bytes_of
from wavepp_worker.runtime.protocol.engine_config import EngineConfig


def engine_shares(config: EngineConfig, shape: ModelShape, bound: int = 0) -> list[Share]:
    """What each rank takes of its device; nothing of a model that does not say how large its parts are.

    Where layers are balanced by cost, each rank with a GPU is taken to have one more than its even part.

    Args:
        bound: where a fraction is asked for, which of ``pool_bounds`` to take for the pools of layers with windows;
            by default they are like the others'.

    Raises:
        ConfigError: as for ``check_partition``, ``per_rank``, ``snapshot_interval``, ``dtype_name`` and ``in_fp8``.
    """
    total = len(shape.caches)
    if total != shape.num_layers or not has_weights(config.model):
        return []
    # More ranks than layers would be taken for a want of memory.
    check_partition(total, config.pp, config.partition)
    dtype = dtype_name(config.dtype, shape.dtype, config.device)
    sizes, each = weight_sizes(config.model), DTYPE_BYTES[dtype]
    even = min(total, -(-total // config.pp) + (config.pp > 1))
    layers, layer = config.partition or (even,) * config.pp, float(sizes.layer)
    if config.device == "cpu":
        # All ranks are on the host, and have no more than there is, however it is divided.
        layers = config.partition or _divided(total, config.pp)
        layer = sizes.layers / total
    known = config.partition is not None or config.device == "cpu"
    firsts = [0, *accumulate(layers[:-1])] if known else [None] * config.pp
    caches, interval = shape.caches_in(config.kv_dtype), snapshot_interval(config)
    longest = within_context(config.max_model_len, shape.context_length or 0)
    fraction, tiers = config.kv_memory_fraction, per_rank(config, "host_kv_tokens")
    adapters = adapter_numbers(config.lora_modules)
    own_states = config.state_blocks is not None
    states = per_rank(config, "state_blocks") if own_states else [config.max_num_seqs] * config.pp
    shares = []
    for rank in range(config.pp):
        ends = sizes.ends if config.pp == 1 or rank in (0, config.pp - 1) else 0
        parts = _parts(caches, layers[rank], firsts[rank])
        a_state = max(state_bytes(part, dtype) for part in parts)
        # A tier has a state for each interval of its tokens, and so has the device, unless it is told how many.
        snapshots = -(-a_state // interval)
        tokens = per_rank(config, "kv_tokens")[rank] if fraction is None else None
        a_token, held = _most_kept(config, parts, dtype, tokens, bound)
        blocks = tiers[rank] // config.block_size
        tier = max(tier_bytes_of(config, part, dtype, blocks) for part in parts)
        shares.append(
            Share(
                device=_device(config.device, rank),
                weights=(int(layers[rank] * layer + ends) + -(-layers[rank] * adapters // total)) * each,
                room=activation_room(
                    config.device, config.max_num_batched_tokens, sizes.width, longest, shape.kv_numbers
                ),
                token_bytes=a_token + (0 if own_states else snapshots),
                tokens=tokens,
                fraction=fraction or 0.0,
                beside=states[rank] * a_state
                + held
                + (tier + tiers[rank] * snapshots if config.device == "cpu" else 0),
            )
        )
    return shares


def with_pools(
    config: EngineConfig,
    shape: ModelShape,
    others: Sequence[Share] = (),
    free: Callable[[str], int] = free_memory,
) -> EngineConfig:
    """The configuration with its pools in tokens, if it asks for a fraction, and there is a way to tell.

    Args:
        others: who shares the devices, and is started together with this engine.
        free: bytes that a device has left.

    Raises:
        ConfigError: what is asked for does not fit, or a fraction holds not one request; begins with the key.
    """
    shares = engine_shares(config, shape)
    if not shares:
        # Nothing can be told: what a library's engine has by default.
        return config.model_copy(update={"kv_memory_fraction": None})
    tokens = share_out([*shares, *others], free)[: config.pp]
    for bound in (1, 2):
        smaller = engine_shares(config, shape, bound)
        if smaller != shares:
            with contextlib.suppress(ConfigError):
                tokens = max(tokens, share_out([*smaller, *others], free)[: config.pp], key=min)
    if config.kv_memory_fraction is None:
        return config
    longest = within_context(config.max_model_len, shape.context_length or 0)
    check_pool(config.kv_memory_fraction, min(tokens), config.block_size, longest)
    return config.model_copy(
        update={
            "kv_tokens": tokens[0] if len(set(tokens)) == 1 else tuple(tokens),
            "kv_memory_fraction": None,
        }
    )


def _parts(caches: Sequence[LayerCache], layers: int, first: int | None) -> list[Sequence[LayerCache]]:
    """So many layers from ``first`` on; every such part of the model, where nobody knows that yet."""
    starts = range(len(caches) - layers + 1) if first is None else (first,)
    return [caches[start : start + layers] for start in starts]


def _most_kept(
    config: EngineConfig,
    parts: Sequence[Sequence[LayerCache]],
    dtype: str,
    tokens: int | None,
    bound: int,
) -> tuple[int, int]:
    """Bytes of a token in one of these parts, and those that do not grow with tokens, at most."""
    each = []
    for part in parts:
        spared, held = _windows(config, window_bytes(part, dtype), tokens, bound)
        each.append((token_bytes(part, dtype) - spared, held))
    return max(growing for growing, _ in each), max(held for _, held in each)


def _windows(
    config: EngineConfig, sizes: Mapping[int, int], tokens: int | None, bound: int
) -> tuple[int, int]:
    """What pools of windows spare of each token, and the bytes that they have besides.

    Args:
        sizes: by span, bytes of a token in layers with such a window.
        tokens: of the other pools; None if that is to be found out.
    """
    block, requests, wave = config.block_size, config.max_num_seqs, config.max_num_batched_tokens
    spared = held = 0
    for span, size in sizes.items():
        if tokens is None:
            share, blocks = pool_bounds(block, span, requests, wave)[bound]
            spared += size - -(-size // share)
            held += block * size * blocks
        else:
            spared += size
            held += block * size * window_pool(tokens // block, block, span, requests, wave)[0]
    return spared, held


def _divided(layers: int, ranks: int) -> tuple[int, ...]:
    return tuple(layers // ranks + (rank < layers % ranks) for rank in range(ranks))


def _device(device: str, rank: int) -> str:
    return f"cuda:{rank % max(1, gpu_count())}" if device == "cuda" else device
