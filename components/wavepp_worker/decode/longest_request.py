"""What the longest request is that a decode engine takes."""

from __future__ import annotations

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import DEFAULT_POOL_TOKENS
from wavepp_worker.model.context_limit import within_context


def longest_request(config: DecodeConfig, context_length: int) -> int:
    """Most tokens of a prompt and its generation, of a model with that context.

    Raises:
        ConfigError: ``max_model_len`` exceeds the model's context, or the pool cannot hold one such request.
    """
    longest = within_context(config.max_model_len, context_length)
    pool = pool_tokens(config) // config.block_size * config.block_size
    if pool < longest:
        raise ConfigError(
            f"kv_tokens gives a pool of {pool} tokens in blocks of {config.block_size}, too small for "
            f"one request of {longest} tokens; raise kv_tokens or set max_model_len to at most {pool}"
        )
    return longest


def pool_tokens(config: DecodeConfig) -> int:
    """Tokens of the pool of an engine, if a fraction of what is free has not been worked out."""
    return DEFAULT_POOL_TOKENS if config.kv_tokens is None else config.kv_tokens
