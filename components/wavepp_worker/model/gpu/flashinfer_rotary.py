"""Rotary embeddings on a GPU, of queries and keys in one kernel, in place: FlashInfer's, where that is installed.

Written after FlashInfer 0.7.4, and not run on a GPU yet: it has to compute what transformers does before it is taken.
"""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.gpu.flashinfer_library import fault_of, installed_for

logger = logging.getLogger(__name__)

_DIMS = (64, 128, 256)
_TABLES = 2
"""Of one wave: models with windows may have angles of their own for these."""
_FEW, _SOME = 1, 300
_ROWS = 64
"""Of the many tokens of a trial, at most, that are computed by transformers as well."""
_TOLERANCE = 0.008
"""Of a number, or of 1 for smaller ones: twice what 16 bits round by."""


class FlashInferRotary:
    """Its kernel on one device. Waves come one after the other, on one stream."""

    def __init__(self, device: torch.device, dtype: torch.dtype, apply: Callable[..., None]) -> None:
        """``apply``: ``flashinfer.rope.apply_rope_with_cos_sin_cache_inplace``."""
        self._device, self._dtype, self._apply = device, dtype, apply
        self._takes: dict[Heads, bool] = {}
        self._tables: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=_TABLES)
        """Cosines as waves gave them, and what was made of these and of the sines."""
        self._rows = torch.empty(0, dtype=torch.int32)

    def takes(self, heads: Heads) -> bool:
        """Whether layers with these heads go through it; if the kernel does not work for them, the log says so."""
        if heads.dim not in _DIMS:
            return False
        if heads not in self._takes:
            fault = fault_of(lambda: all(self._agrees(heads, tokens) for tokens in self._trials(heads.dim)))
            if fault:
                logger.warning(
                    "FlashInfer's rotary embedding is not used for %d heads of queries, %d of keys and dim %d: %s",
                    *(heads.queries, heads.keys, heads.dim, fault),
                )
            self._takes[heads] = not fault
            self._tables.clear()
        return self._takes[heads]

    def rotate(self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate in place, as ``apply_rotary_pos_emb()`` of transformers' Llama does.

        Args:
            query: ``[tokens, heads, dim]``, contiguous.
            key: likewise, of its own heads.
            cos: ``[1, tokens, dim]``, of which the second half repeats the first; one tensor for many layers of a wave.
            sin: likewise.
        """
        tokens, _, dim = query.shape
        if tokens > len(self._rows):
            self._rows = torch.arange(tokens, dtype=torch.int32, device=query.device)
        flat = (each.view(tokens, -1) for each in (query, key))
        self._apply(self._rows[:tokens], *flat, dim, self._table(cos, sin), is_neox=True)

    def _table(self, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for known, table in self._tables:
            if known is cos:
                return table
        half = cos.shape[-1] // 2
        table = torch.cat((cos[0, :, :half], sin[0, :, :half]), -1).float()
        self._tables.append((cos, table))
        return table

    def _trials(self, dim: int) -> tuple[int, ...]:
        """How many tokens it is tried with: many have a kernel of their own, which takes as many as fill the GPU."""
        if self._device.type != "cuda":
            return _FEW, _SOME
        gpu = torch.cuda.get_device_properties(self._device)
        # Blocks are of 128 threads, each of which takes eight numbers.
        blocks = gpu.multi_processor_count * gpu.max_threads_per_multi_processor // 128
        return _FEW, _SOME, blocks * (128 * 8 // dim) + 1

    def _agrees(self, heads: Heads, tokens: int) -> bool:
        draw = torch.Generator(self._device).manual_seed(tokens)
        query, key, angles = (
            torch.randn(tokens, count, width, generator=draw, device=self._device)
            for count, width in ((heads.queries, heads.dim), (heads.keys, heads.dim), (1, heads.dim // 2))
        )
        query, key = query.to(self._dtype), key.to(self._dtype)
        angles = angles[:, 0].repeat(1, 2)[None]
        cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        rows = torch.arange(0, tokens, max(1, tokens // _ROWS), device=self._device)
        # The last one as well, where blocks end.
        rows[-1] = tokens - 1
        # Heads lie before tokens in transformers.
        wanted = apply_rotary_pos_emb(
            *(each[rows].float()[None] for each in (query, key)),
            *(each[:, rows].float() for each in (cos, sin)),
            unsqueeze_dim=2,
        )
        with torch.inference_mode():
            self.rotate(query, key, cos, sin)
        return all(
            bool(((got[rows].float() - want[0]).abs() < _TOLERANCE * want[0].abs().clamp(min=1)).all())
            for got, want in zip((query, key), wanted, strict=True)
        )


def find_rotary(device: torch.device, dtype: torch.dtype) -> FlashInferRotary | None:
    """FlashInfer's kernel for a device, if it is installed and may be there for numbers of a dtype."""
    if not installed_for(device, dtype):
        return None
    try:
        apply: Any = importlib.import_module("flashinfer.rope").apply_rope_with_cos_sin_cache_inplace
    except Exception as error:
        logger.warning("FlashInfer's rotary embedding cannot be used: %s", error)
        return None
    return FlashInferRotary(device, dtype, apply)
