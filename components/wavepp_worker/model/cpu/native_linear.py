"""Linear layers on a CPU: the kernels of ``linear.cpp`` for few tokens, as in decode steps, and for more.

Where the CPU multiplies bfloat16, such layers keep their weights packed for it, and in no other order
(``PackedLinear``); but not those that share them or do not fit.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from wavepp_worker.model.cpu.native_library import (
    computes_on,
    kernel,
    multiplies_bfloat16,
    reads_packed_weights,
    torch_has_amx,
)

MOST_FEW = 64
"""More tokens are for torch, where there is no kernel for many (``gemm_min_tokens``)."""
FEWER_TOKENS, FEW_INPUTS = 16, 640
"""The same where torch is better at them: of float32 in one thread, as torch gains little from several for few tokens,
and on CPUs that multiply bfloat16, whose vectors of floats are wider than ours; of bfloat16 with more inputs than the
latter where torch has AMX and weights are not packed for our kernels."""
_MOST_UNFIT = 8
"""The same of bfloat16, where the CPU multiplies it, for layers that the kernel for many cannot take."""
_OUTPUTS = 4
"""A multiple of this: so many weight rows are read at a time."""
_PACKED_OUTPUTS, _PACKED_INPUTS = 16, 32
"""Layers of multiples of these can be packed."""
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class NativeLinear(nn.Linear):
    """A linear layer on the CPU that goes through the kernels as far as they are faster, else through torch."""

    packed = False
    """Whether it is a ``PackedLinear``."""

    @property
    def stored(self) -> torch.Tensor:
        """Its weights as the kernels read them, of the same size and dtype."""
        return self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.numel() // self.in_features
        fits = x.dtype is self.stored.dtype and x.is_cpu and x.shape[-1] == self.in_features
        if not fits or not 0 < tokens <= most_tokens(self):
            # Also what cannot be multiplied, as torch says why.
            return _by_torch(x, self.weight, self.bias)
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.out_features)
        _linear()(
            x.data_ptr(),
            *_addresses(self),
            self.packed,
            tokens,
            self.in_features,
            self.out_features,
            out.data_ptr(),
            torch.get_num_threads(),
            x.dtype is torch.bfloat16,
        )
        return out


class PackedLinear(NativeLinear):
    """One whose weights ``[outputs, inputs]`` are packed as ``[outputs / 16, inputs / 2, 16 outputs, 2 inputs]``."""

    packed = True
    packed_weight: nn.Parameter
    _copied: tuple[tuple[int, torch.dtype], torch.Tensor] | None = None

    @classmethod
    def pack(cls, layer: nn.Linear) -> None:
        """Makes ``layer`` one, of bfloat16 and of a size that fits."""
        weight = layer._parameters.pop("weight")
        assert weight is not None, "packed once"
        pairs = weight.detach().view(torch.int32).view(-1, _PACKED_OUTPUTS, layer.in_features // 2)
        packed = pairs.transpose(1, 2).contiguous().view(weight.dtype)
        layer.register_parameter("packed_weight", nn.Parameter(packed, requires_grad=False))
        layer.__class__ = cls

    @property
    def stored(self) -> torch.Tensor:
        return self.packed_weight

    # To torch it is a parameter, which nothing here sets.
    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """Its weights ``[outputs, inputs]``, a copy that is kept: who asks for it once may do so in every wave."""
        packed = self.packed_weight.data
        of = packed.data_ptr(), packed.dtype
        if self._copied is None or self._copied[0] != of:
            pairs = packed.view(-1, self.in_features // 2, _PACKED_OUTPUTS, 2)
            self._copied = of, pairs.transpose(1, 2).reshape(self.out_features, self.in_features)
        return self._copied[1]


def gated_pair(gate: NativeLinear, up: NativeLinear, x: torch.Tensor) -> torch.Tensor:
    """``silu(gate(x)) * up(x)`` of layers of the same kind and sizes, each of which ``takes_many()``.

    Args:
        x: ``[..., inputs]``, of their dtype; any number of tokens.
    """
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], gate.out_features)
    _gated()(
        x.data_ptr(),
        *_addresses(gate),
        *_addresses(up),
        gate.packed,
        x.numel() // gate.in_features,
        gate.in_features,
        gate.out_features,
        out.data_ptr(),
        torch.get_num_threads(),
        x.dtype is torch.bfloat16,
    )
    return out


def most_tokens(layer: nn.Linear) -> int:
    """The most that the kernels take of a layer; 0 of one that never goes there."""
    if not isinstance(layer, NativeLinear):
        return 0
    dtype = layer.stored.dtype
    if layer.packed:
        return sys.maxsize if dtype is torch.bfloat16 else 0
    fits = gemm_min_tokens(layer.in_features, layer.out_features, dtype)
    if fits:
        return sys.maxsize
    if dtype is torch.float32:
        torch_is_better = multiplies_bfloat16() or torch.get_num_threads() == 1
        return FEWER_TOKENS if torch_is_better else MOST_FEW
    if not multiplies_bfloat16():
        return MOST_FEW
    if not torch_has_amx():
        return _MOST_UNFIT
    return FEWER_TOKENS if layer.in_features > FEW_INPUTS else MOST_FEW


@cache
def gemm_min_tokens(inputs: int, outputs: int, dtype: torch.dtype) -> int:
    """From how many tokens on the products of ``gemm.h`` take such layers, faster than those for few; 0: never, here.

    Only where ``computes_on()`` holds.
    """
    asked = kernel("wavepp_gemm_min_tokens", *(_NUMBER,) * 3, returns=_NUMBER)
    return int(asked(inputs, outputs, dtype is torch.bfloat16))


def takes_many(layer: nn.Linear) -> bool:
    """Whether the kernels take any number of tokens of a layer, of ``fewest_tokens()`` on as a ``gated_pair``."""
    return most_tokens(layer) == sys.maxsize


def fewest_tokens(layer: NativeLinear) -> int:
    """From how many tokens on a layer that ``takes_many()`` goes through the kernels for many."""
    if layer.packed:
        return 1
    return gemm_min_tokens(layer.in_features, layer.out_features, layer.stored.dtype)


def make_native(model: nn.Module) -> None:
    """Have the model's linear layers go through the kernels, where there are such for them.

    Of those whose weights are packed, ``weight`` is a copy from now on; those that share theirs keep them.
    """
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    for layer in model.modules():
        if type(layer) is not nn.Linear or layer.out_features % _OUTPUTS:
            continue
        parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        alike = all(part.dtype is layer.weight.dtype and part.is_contiguous() for part in parts)
        if alike and computes_on(layer.weight.dtype, layer.weight.device):
            if uses[id(layer.weight)] == 1 and _can_be_packed(layer):
                PackedLinear.pack(layer)
            else:
                layer.__class__ = NativeLinear


def _can_be_packed(layer: nn.Linear) -> bool:
    fits = not layer.in_features % _PACKED_INPUTS and not layer.out_features % _PACKED_OUTPUTS
    return fits and layer.weight.dtype is torch.bfloat16 and reads_packed_weights()


def _by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if weight.dtype is torch.float32 or multiplies_bfloat16():
        return F.linear(x, weight, bias)
    # Without instructions for it torch's product of bfloat16 takes five times as long as this one.
    product = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return product.to(x.dtype)


def _addresses(layer: NativeLinear) -> tuple[Any, Any]:
    """Of its weights, and of its bias if it has one."""
    return layer.stored.data_ptr(), None if layer.bias is None else layer.bias.data_ptr()


@cache
def _linear() -> ctypes._FuncPointer:
    return kernel("wavepp_linear", *(_ADDRESS,) * 3, *(_NUMBER,) * 4, _ADDRESS, *(_NUMBER,) * 2)


@cache
def _gated() -> ctypes._FuncPointer:
    return kernel("wavepp_gated_linear", *(_ADDRESS,) * 5, *(_NUMBER,) * 4, _ADDRESS, *(_NUMBER,) * 2)
