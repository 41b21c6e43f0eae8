"""How many tokens of KV a decode engine has where a fraction of what is free is asked for; what cannot fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.longest_request import pool_tokens
from wavepp_worker.model.context_limit import within_context
from wavepp_worker.model.device.free_memory import free_memory
from wavepp_worker.model.dtype_choice import DTYPE_BYTES, dtype_name
from wavepp_worker.model.files.weight_sizes import has_weights, weight_sizes
from wavepp_worker.model.kv.kv_share import Share, activation_room, check_pool, share_out
from wavepp_worker.model.kv.layer_cache import state_bytes, token_bytes
from wavepp_worker.model.lora import adapter_numbers
from wavepp_worker.model.model_shape import ModelShape


def decode_share(config: DecodeConfig, shape: ModelShape) -> list[Share]:
    """What the engine takes of its device; nothing of a model that does not say how large its parts are.

    Raises:
        ConfigError: as for ``dtype_name`` and ``in_fp8``.
    """
    if not shape.caches or not has_weights(config.model):
        return []
    dtype = dtype_name(config.dtype, shape.dtype, config.device)
    sizes, each, caches = weight_sizes(config.model), DTYPE_BYTES[dtype], shape.caches_in(config.kv_dtype)
    longest = within_context(config.max_model_len, shape.context_length or 0)
    return [
        Share(
            device="cuda:0" if config.device == "cuda" else config.device,
            weights=(sizes.layers + sizes.ends + adapter_numbers(config.lora_modules)) * each,
            room=activation_room(config.device, config.max_num_seqs, sizes.width, longest, shape.kv_numbers),
            token_bytes=token_bytes(caches, dtype),
            tokens=pool_tokens(config) if config.kv_memory_fraction is None else None,
            fraction=config.kv_memory_fraction or 0.0,
            beside=config.max_num_seqs * state_bytes(caches, dtype),
        )
    ]


def with_pool(
    config: DecodeConfig,
    shape: ModelShape,
    others: Sequence[Share] = (),
    free: Callable[[str], int] = free_memory,
) -> DecodeConfig:
    """The configuration with its pool in tokens, if it asks for a fraction, and there is a way to tell.

    Args:
        others: who shares the device, and is started together with this engine.
        free: bytes that a device has left.

    Raises:
        ConfigError: what is asked for does not fit, or a fraction holds not one request; begins with the key.
    """
    shares = decode_share(config, shape)
    if not shares:
        return config.model_copy(update={"kv_memory_fraction": None})
    tokens = share_out([*shares, *others], free)[0]
    if config.kv_memory_fraction is None:
        return config
    longest = within_context(config.max_model_len, shape.context_length or 0)
    check_pool(config.kv_memory_fraction, tokens, config.block_size, longest)
    return config.model_copy(update={"kv_tokens": tokens, "kv_memory_fraction": None})
