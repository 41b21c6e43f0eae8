"""Rows of a KV pool in FP8: each row's numbers in e4m3, and after them the scale that they are multiplied with."""

from __future__ import annotations

import torch

from wavepp_worker.model.kv.layer_cache import SCALE_BYTES

NUMBERS = torch.float8_e4m3fn
_LARGEST = torch.finfo(NUMBERS).max


def to_rows(values: torch.Tensor) -> torch.Tensor:
    """``[..., dim]`` as uint8 ``[..., dim + SCALE_BYTES]``; the largest number of a row is the largest there is."""
    exact = values.float()
    # Of a row of zeros any scale will do.
    scale = (
        exact.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST
    )
    numbers = (exact / scale).to(NUMBERS)
    return torch.cat([numbers.view(torch.uint8), scale.contiguous().view(torch.uint8)], -1)


def from_rows(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What ``to_rows`` made rows of, as far as FP8 tells."""
    numbers, scale = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return (numbers.contiguous().view(NUMBERS).float() * scale).to(dtype)
