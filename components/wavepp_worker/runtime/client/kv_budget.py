"""How many tokens of KV each rank of an engine has where a fraction of what is free is asked for; what cannot fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wavepp_worker.model.context_limit import within_context
from wavepp_worker.model.device import gpu_count
from wavepp_worker.model.dtype_choice import DTYPE_BYTES, dtype_name
from wavepp_worker.model.free_memory import free_memory
from wavepp_worker.model.kv_share import Share, activation_room, check_pool, share_out
from wavepp_worker.model.lora import adapter_numbers
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.model.partition import check_partition
from wavepp_worker.model.weight_sizes import has_weights, weight_sizes
from wavepp_worker.runtime.client.kv_pools import per_rank
from wavepp_worker.runtime.protocol.engine_config import EngineConfig


def engine_shares(config: EngineConfig, shape: ModelShape) -> list[Share]:
    """What each rank takes of its device; nothing of a model that does not say how large its parts are.

    Where layers are balanced by cost, each rank with a GPU is taken to have one more than its even part.

    Raises:
        ConfigError: as for ``check_partition``, ``per_rank`` and ``dtype_name``.
    """
    if shape.kv_numbers is None or shape.num_layers is None or not has_weights(config.model):
        return []
    # More ranks than layers would be taken for a want of memory.
    check_partition(shape.num_layers, config.pp, config.partition)
    sizes, each = (
        weight_sizes(config.model),
        DTYPE_BYTES[dtype_name(config.dtype, shape.dtype, config.device)],
    )
    even = min(shape.num_layers, -(-shape.num_layers // config.pp) + (config.pp > 1))
    layers, layer = config.partition or (even,) * config.pp, float(sizes.layer)
    if config.device == "cpu":
        # All ranks are on the host, and have no more than there is, however it is divided.
        layers = config.partition or _divided(shape.num_layers, config.pp)
        layer = sizes.layers / shape.num_layers
    longest = within_context(config.max_model_len, shape.context_length or 0)
    fraction, tiers = config.kv_memory_fraction, per_rank(config, "host_kv_tokens")
    adapters = adapter_numbers(config.lora_modules)
    shares = []
    for rank in range(config.pp):
        ends = sizes.ends if config.pp == 1 or rank in (0, config.pp - 1) else 0
        token_bytes = layers[rank] * shape.kv_bytes(each, config.kv_dtype)
        shares.append(
            Share(
                device=_device(config.device, rank),
                weights=(int(layers[rank] * layer + ends) + -(-layers[rank] * adapters // shape.num_layers))
                * each,
                room=activation_room(
                    config.device, config.max_num_batched_tokens, sizes.width, longest, shape.kv_numbers
                ),
                token_bytes=token_bytes,
                tokens=per_rank(config, "kv_tokens")[rank] if fraction is None else None,
                fraction=fraction or 0.0,
                beside=tiers[rank] * token_bytes if config.device == "cpu" else 0,
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


def _divided(layers: int, ranks: int) -> tuple[int, ...]:
    return tuple(layers // ranks + (rank < layers % ranks) for rank in range(ranks))


def _device(device: str, rank: int) -> str:
    return f"cuda:{rank % max(1, gpu_count())}" if device == "cuda" else device
