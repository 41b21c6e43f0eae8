"""Attention that reads keys and values where they lie: the kernel of ``paged_attention.cpp``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch

from wavepp_worker.model.cpu.native_library import computes_on, kernel

_LANES = 16
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (
    *(_ADDRESS, _NUMBER, _NUMBER),
    *(_ADDRESS,) * 6,
    *(_NUMBER,) * 6,
    *(ctypes.c_double, _NUMBER, _ADDRESS, _NUMBER, _NUMBER),
)


@dataclass(frozen=True)
class RequestSpans:
    """Where the kernel finds the requests of a wave: int64 tensors on the CPU.

    Attributes:
        tables: all block tables, one after the other; where a block is of a window and there no more, any other.
        table_at: ``[chunks]`` where each request's begins.
        starts: ``[chunks]`` tokens before the chunk.
        lengths: ``[chunks]`` tokens of the chunk.
    """

    tables: torch.Tensor
    table_at: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor], starts: list[int], lengths: list[int]) -> RequestSpans:
        at = [0, *accumulate(map(len, tables))][:-1]
        # The kernel masks what is left of a window, and may load it.
        return cls(
            torch.cat(list(tables)).clamp_(min=0),
            torch.tensor(at),
            torch.tensor(starts),
            torch.tensor(lengths),
        )


def reads_in_place(dtype: torch.dtype, device: torch.device, key_dim: int, value_dim: int) -> bool:
    """Whether ``attend_in_place`` can compute with tensors of this kind on this machine."""
    return not (key_dim % _LANES or value_dim % _LANES) and computes_on(dtype, device)


def attend_in_place(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: RequestSpans,
    block_size: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of a wave's tokens over their requests' tokens in the pools, those of the wave included.

    What a token gets does not depend on how its request is cut into chunks or on what else is in the wave, bit for bit.

    Args:
        query: ``[1, heads, tokens, dim]``, bfloat16 or float32, as all that follow.
        keys: pool ``[rows, groups, dim]``; ``heads`` is a multiple of ``groups``.
        values: pool ``[rows, groups, value dim]``.
        scale: factor on the scores, greater than 0.
        window: tokens that a token sees, itself included; None for all.

    Returns:
        ``[1, tokens, heads, value dim]``.
    """
    if query.stride(3) != 1:
        query = query.contiguous()
    heads, tokens, dim = query.shape[1:]
    groups, value_dim = values.shape[1:]
    out = query.new_empty(1, tokens, heads, value_dim)
    _kernel()(
        query.data_ptr(),
        query.stride(2),
        query.stride(1),
        keys.data_ptr(),
        values.data_ptr(),
        spans.tables.data_ptr(),
        spans.table_at.data_ptr(),
        spans.starts.data_ptr(),
        spans.lengths.data_ptr(),
        len(spans.starts),
        block_size,
        heads,
        groups,
        dim,
        value_dim,
        scale,
        window or 0,
        out.data_ptr(),
        torch.get_num_threads(),
        query.dtype is torch.bfloat16,
    )
    return out


@cache
def _kernel() -> ctypes._FuncPointer:
    return kernel("wavepp_paged_attention", *_ARGUMENTS)
