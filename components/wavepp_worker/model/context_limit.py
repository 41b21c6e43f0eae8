"""How long a request may be, as far as the model goes."""

from __future__ import annotations

from wavepp_worker.errors import ConfigError


def within_context(max_model_len: int | None, context_length: int) -> int:
    """Most tokens that one request may have, of a model with that context; all of it by default.

    Raises:
        ConfigError: ``max_model_len`` exceeds the model's context.
    """
    longest = max_model_len or context_length
    if longest > context_length:
        raise ConfigError(
            f"max_model_len is {longest}, but the model's context length is {context_length}; "
            "lower max_model_len"
        )
    return longest
