"""Rotary embeddings on a GPU, of queries and keys in one kernel, in place: FlashInfer's, where that is installed.

Written after FlashInfer 0.7.4, and not run on a GPU yet: it has to compute what transformers does before it is taken.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.gpu.flashinfer_plans import fault_of

logger = logging.getLogger(__name__)

_DTYPES = (torch.float16, torch.bfloat16)
_DIMS = (64, 128, 256)
_TOKENS = (1, 37)
"""Of the waves that it is tried with."""
_TOLERANCE = 0.05
"""Of numbers around 1, up to 5, in 16 bits; another rotation is off by whole ones."""


class FlashInferRotary:
    """Its kernel on one device. Waves come one after the other, on one stream."""

    def __init__(self, device: torch.device, dtype: torch.dtype, apply: Callable[..., None]) -> None:
        """``apply``: ``flashinfer.rope.apply_rope_with_cos_sin_cache_inplace``."""
        self._device, self._dtype, self._apply = device, dtype, apply
        self._takes: dict[Heads, bool] = {}
        self._cos: torch.Tensor | None = None
        """Of the wave that ``_table`` is made of."""
        self._table = self._rows = torch.empty(0)

    def takes(self, heads: Heads) -> bool:
        """Whether layers with these heads go through it; if the kernel does not work for them, the log says so."""
        if heads.dim not in _DIMS:
            return False
        if heads not in self._takes:
            fault = fault_of(lambda: self._agrees(heads))
            if fault:
                logger.warning(
                    "FlashInfer's rotary embedding is not used for %d heads of queries, %d of keys and dim %d: %s",
                    *(heads.queries, heads.keys, heads.dim, fault),
                )
            self._takes[heads] = not fault
        return self._takes[heads]

    def rotate(self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate in place, as ``apply_rotary_pos_emb()`` of transformers' Llama does.

        Args:
            query: ``[tokens, heads, dim]``, contiguous.
            key: likewise, of its own heads.
            cos: ``[1, tokens, dim]``, of which the second half repeats the first; one tensor for all layers of a wave.
            sin: likewise.
        """
        if cos is not self._cos:
            half = cos.shape[-1] // 2
            self._table = torch.cat((cos[0, :, :half], sin[0, :, :half]), -1).float()
            self._rows = torch.arange(len(query), dtype=torch.int32, device=cos.device)
            self._cos = cos
        dim = query.shape[-1]
        self._apply(
            self._rows, *(each.view(len(each), -1) for each in (query, key)), dim, self._table, is_neox=True
        )

    def _agrees(self, heads: Heads) -> bool:
        draw = torch.Generator().manual_seed(0)
        with torch.inference_mode():
            for tokens in _TOKENS:
                query, key = (
                    torch.randn(tokens, count, heads.dim, generator=draw).to(self._dtype)
                    for count in (heads.queries, heads.keys)
                )
                angles = torch.randn(1, tokens, heads.dim // 2, generator=draw).repeat(1, 1, 2)
                cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
                # Heads lie before tokens in transformers.
                wanted = apply_rotary_pos_emb(
                    *(each.float()[None] for each in (query, key)), cos.float(), sin.float(), unsqueeze_dim=2
                )
                there = [each.to(self._device) for each in (query, key, cos, sin)]
                self.rotate(*there)
                for got, want in zip(there, wanted, strict=False):
                    if not bool(((got.cpu().float() - want[0]).abs() < _TOLERANCE).all()):
                        return False
        return True


def find_rotary(device: torch.device, dtype: torch.dtype) -> FlashInferRotary | None:
    """FlashInfer's kernel for a device, if it is installed and may be there for numbers of a dtype."""
    if device.type != "cuda" or dtype not in _DTYPES or importlib.util.find_spec("flashinfer") is None:
        return None
    try:
        apply: Any = importlib.import_module("flashinfer.rope").apply_rope_with_cos_sin_cache_inplace
    except Exception as error:
        logger.warning("FlashInfer's rotary embedding cannot be used: %s", error)
        return None
    return FlashInferRotary(device, dtype, apply)
