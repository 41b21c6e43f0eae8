"""Attention of all chunks of a wave in one call, on a GPU: torch's ``varlen_attn``, which is FlashAttention.

Keys and values are gathered before. Query heads share key heads as they lie, and a chunk's last token sees all that is
given of its request: FlashAttention aligns the causal mask, and a window, to the lower right.

Written after the documentation of torch 2.13 and FlashAttention; not run on a GPU yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from wavepp_worker.model.kv.window_layout import WindowLayout

_DTYPES = (torch.float16, torch.bfloat16)
_OLDEST = (8, 0)
"""Compute capability: Ampere."""
_WIDEST, _STEP = 256, 8
"""Of head dimensions that the kernel takes: at most, and in multiples of."""


@dataclass(frozen=True)
class AttentionKinds:
    """How many layers of a stage attend in which way.

    Attributes:
        in_place: FlashInfer reads the pools, or may where that pays.
        gathered: nothing is done to the scores but to mask them.
        capped: something else is.
        picked: they read what an indexer picks.
    """

    in_place: int = 0
    gathered: int = 0
    capped: int = 0
    picked: int = 0


@lru_cache
def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has the kernel for numbers of a dtype."""
    return (
        device.type == "cuda"
        and dtype in _DTYPES
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= _OLDEST
    )


def kernel_on_gpu(device: torch.device, dtype: torch.dtype, kinds: AttentionKinds) -> str:
    """What a stage's log says of its attention: what computes it, in how many layers if not in all."""
    gathered = (
        "torch's varlen_attn (FlashAttention) over gathered pages, all chunks of a wave at once"
        if has_flash(device, dtype)
        else "torch's scaled_dot_product_attention over gathered pages, chunk by chunk"
    )
    found = [
        (name, layers)
        for name, layers in (
            ("FlashInfer over pages in place, all chunks of a wave at once", kinds.in_place),
            (gathered, kinds.gathered),
            (
                "plain torch over gathered pages, tile by tile, as scores are capped or have sinks",
                kinds.capped,
            ),
            ("plain torch over the tokens that an indexer picks", kinds.picked),
        )
        if layers
    ]
    if len(found) == 1:
        return found[0][0]
    return "; ".join(f"in {layers} layers {name}" for name, layers in found) or "nothing, as no layer attends"


def can_pack(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel takes heads of these dimensions, where they are; as ``attend_packed`` is given them."""
    dim = query.shape[-1]
    return value.shape[-1] <= dim <= _WIDEST and dim % _STEP == 0 and has_flash(query.device, query.dtype)


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: WindowLayout,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of each chunk to what is read of its request.

    Args:
        query: ``[1, heads, tokens, dim]``, chunk after chunk.
        key: ``[1, key heads, read, dim]``, request after request.
        value: likewise, of no larger dim.
        window: tokens that a token sees, itself included; None for all before it.

    Returns:
        ``[1, tokens, heads, value dim]``.
    """
    queries, keys = layout.bounds
    dim, value_dim = query.shape[-1], value.shape[-1]
    wide = F.pad(value, (0, dim - value_dim)) if value_dim < dim else value
    out = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        wide[0].transpose(0, 1),
        queries,
        keys,
        layout.most_queries,
        layout.most_keys,
        scale=scale,
        # To the left it does not count the token itself.
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor), "nothing else was asked for"
    return out[None, ..., :value_dim]
