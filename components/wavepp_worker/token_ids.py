"""Token ids as they travel: packed little-endian uint32, four bytes each. The only place that knows the width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavepp_worker.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

BYTES = 4
"""Bytes of one packed token id."""
DTYPE = np.dtype("<u4")


def pack(token_ids: Sequence[int] | NDArray[np.integer]) -> bytes:
    """Token ids, packed.

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
    return ids.astype(DTYPE).tobytes()


def unpack(tokens: bytes | memoryview) -> NDArray[np.uint32]:
    """Packed token ids as a read-only uint32 array ``[tokens]`` over the same bytes."""
    return np.frombuffer(tokens, dtype=DTYPE)


def as_tensor(tokens: bytes) -> torch.Tensor:
    """Packed token ids as an int64 tensor ``[tokens]`` of its own on the CPU."""
    import torch

    return torch.frombuffer(bytearray(tokens), dtype=torch.int32).long()


def count(tokens: bytes | memoryview) -> int:
    """How many token ids are packed in ``tokens``."""
    return len(tokens) // BYTES


def distinct(tokens: bytes) -> bytes:
    """Packed token ids, each once and in ascending order."""
    ids = unpack(tokens)
    found = np.zeros(int(ids.max(initial=0)) + 1, np.bool_)
    found[ids] = True
    return np.flatnonzero(found).astype(DTYPE).tobytes()


def part(tokens: bytes, start: int, end: int) -> bytes:
    """Tokens ``[start, end)`` of packed token ids."""
    return tokens[BYTES * start : BYTES * end]
