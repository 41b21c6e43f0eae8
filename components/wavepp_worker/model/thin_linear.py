"""Linear layers that are fast for few tokens, as in decode steps: the kernel of ``thin_linear.cpp``."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from wavepp_worker.model.native_library import computes_on, kernel, multiplies_bfloat16, multiplies_tiles

MOST_TOKENS = 64
"""From more tokens on torch's matrix products are faster."""
FEWER_TOKENS, FEW_INPUTS = 16, 640
"""The same where torch is better at them: of float32 in one thread, as torch gains little from several for few tokens,
and where its vectors are wider than ours; of bfloat16 with more inputs than the latter, where it multiplies tiles
(AMX), which was not measured."""
_OUTPUTS, _SIDE_BY_SIDE, _MOST_ONE_BY_ONE = 4, 16, 8
"""Of ``thin_linear_bfloat16.cpp``: outputs are a multiple of the first; unless of the second, and inputs even, each
token is multiplied by itself, which pays for so many."""
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (*(_ADDRESS,) * 3, *(_NUMBER,) * 3, _ADDRESS, _NUMBER, _NUMBER)


class ThinLinear(nn.Linear):
    """A linear layer on the CPU that takes few tokens through the kernel, more through torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.numel() // self.in_features
        fits = x.dtype is self.weight.dtype and x.is_cpu and x.shape[-1] == self.in_features
        if not fits or not 0 < tokens <= most_tokens(self):
            # Also what cannot be multiplied, as torch says why.
            return _by_torch(x, self.weight, self.bias)
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.out_features)
        _kernel()(
            x.data_ptr(),
            self.weight.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            tokens,
            self.in_features,
            self.out_features,
            out.data_ptr(),
            torch.get_num_threads(),
            x.dtype is torch.bfloat16,
        )
        return out


def _by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if weight.dtype is torch.float32 or multiplies_bfloat16():
        return F.linear(x, weight, bias)
    # Without instructions for it torch's product of bfloat16 takes five times as long as this one.
    product = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return product.to(x.dtype)


def most_tokens(layer: nn.Linear) -> int:
    """The most that the kernel takes of a layer; 0 of one that never goes there."""
    if not isinstance(layer, ThinLinear):
        return 0
    if layer.weight.dtype is torch.float32:
        torch_is_better = multiplies_bfloat16() or torch.get_num_threads() == 1
        return FEWER_TOKENS if torch_is_better else MOST_TOKENS
    if not multiplies_bfloat16():
        return MOST_TOKENS
    if layer.in_features % 2 or layer.out_features % _SIDE_BY_SIDE:
        return _MOST_ONE_BY_ONE
    return FEWER_TOKENS if layer.in_features > FEW_INPUTS and multiplies_tiles() else MOST_TOKENS


def make_thin(model: nn.Module) -> None:
    """Have the model's linear layers take few tokens through the kernel, where there is one for them."""
    for layer in model.modules():
        if type(layer) is not nn.Linear or layer.out_features % _OUTPUTS:
            continue
        parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        alike = all(part.dtype is layer.weight.dtype and part.is_contiguous() for part in parts)
        if alike and computes_on(layer.weight.dtype, layer.weight.device):
            layer.__class__ = ThinLinear


@cache
def _kernel() -> ctypes._FuncPointer:
    return kernel("wavepp_thin_linear", *_ARGUMENTS)
