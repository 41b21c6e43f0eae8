"""Prompts as they enter the engine: packing token ids, and refusing what cannot be run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavepp_worker.errors import InvalidRequest


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32.

    Raises:
        InvalidRequest: not a flat list of integers, or an id is negative or does not fit 32 bits.
    """
    try:
        ids = np.asarray(token_ids)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"token ids must be one flat list of integers: {error}") from error
    if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
        raise InvalidRequest("token ids must be one flat list of integers")
    if len(ids) and (ids.min() < 0 or ids.max() >= 2**32):
        bad = next(int(token) for token in ids if not 0 <= token < 2**32)
        raise InvalidRequest(f"token id {bad} is not an unsigned 32-bit number")
    return ids.astype("<u4").tobytes()


def check_prompt(tokens: bytes, max_model_len: int, vocab_size: int) -> None:
    """Refuse a prompt that this worker cannot run.

    Args:
        tokens: little-endian uint32 token ids.

    Raises:
        InvalidRequest: empty, too long, or an id outside the vocabulary.
    """
    ids = np.frombuffer(tokens, dtype="<u4")
    if len(ids) == 0:
        raise InvalidRequest("the prompt is empty; give at least one token")
    if len(ids) > max_model_len:
        raise InvalidRequest(f"the prompt has {len(ids)} tokens, this worker accepts at most {max_model_len}")
    highest = int(ids.max())
    if highest >= vocab_size:
        raise InvalidRequest(f"token id {highest} is outside the vocabulary of {vocab_size} tokens")
