"""What lies between the matrix products of a layer, each chain in one pass: the kernels of ``elementwise.cpp``.

All tensors of a call are bfloat16, or all float32, on the CPU.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from wavepp_worker.model.cpu.native_library import kernel

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` ``[..., width]`` over its root mean square, times ``weight`` ``[width]``."""
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    _rms_norm()(
        x.data_ptr(),
        weight.data_ptr(),
        x.numel() // width,
        width,
        eps,
        out.data_ptr(),
        torch.get_num_threads(),
        _narrow(x),
    )
    return out


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``, both of one shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    width = gate.shape[-1]
    _silu_times()(
        gate.data_ptr(),
        up.data_ptr(),
        gate.numel() // width,
        width,
        out.data_ptr(),
        torch.get_num_threads(),
        _narrow(gate),
    )
    return out


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Rotary embedding of a wave's queries, where they lie, and of its keys on their way into the pools.

    Args:
        query: ``[tokens, heads, dim]``; changed.
        key: ``[tokens, groups, dim]``.
        value: ``[tokens, groups, value dim]``.
        cos, sin: ``[tokens, dim]``.
        slots: int64 ``[tokens]``, rows of the pools that receive keys and values.
        keys, values: pools ``[rows, groups, dim]`` and ``[rows, groups, value dim]``.
    """
    tokens, heads, dim = query.shape
    parts = query, key.contiguous(), value.contiguous(), cos.contiguous(), sin.contiguous()
    assert query.is_contiguous(), "it is changed where it lies"
    _rotate_store()(
        *(part.data_ptr() for part in parts),
        slots.data_ptr(),
        tokens,
        heads,
        key.shape[1],
        dim,
        value.shape[2],
        keys.data_ptr(),
        values.data_ptr(),
        torch.get_num_threads(),
        _narrow(query),
    )


def rotate(query: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotary embedding alone, as of ``rotate_and_store``."""
    nothing = query[:, :0]
    slots = torch.zeros(len(query), dtype=torch.int64)
    rotate_and_store(query, nothing, nothing, cos, sin, slots, nothing, nothing)


def _narrow(numbers: torch.Tensor) -> bool:
    return numbers.dtype is torch.bfloat16


@cache
def _rms_norm() -> ctypes._FuncPointer:
    arguments = _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, ctypes.c_double, _ADDRESS, _NUMBER, _NUMBER
    return kernel("wavepp_rms_norm", *arguments)


@cache
def _silu_times() -> ctypes._FuncPointer:
    return kernel("wavepp_silu_times", _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _NUMBER, _NUMBER)


@cache
def _rotate_store() -> ctypes._FuncPointer:
    arguments = *(_ADDRESS,) * 6, *(_NUMBER,) * 5, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER
    return kernel("wavepp_rotate_store", *arguments)
