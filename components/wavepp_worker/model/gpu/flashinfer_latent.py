"""Latent attention on a GPU that reads latents where they lie: FlashInfer's MLA kernels, where that is installed.

Written after FlashInfer 0.7.4, and not run on a GPU yet; as with ``flashinfer_attention`` nothing is taken on trust.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavepp_worker.model.attention.latent_absorption import (
    LatentSizes,
    absorbed_queries,
    expansion,
    values_of,
)
from wavepp_worker.model.device.cuda_device import page_locked
from wavepp_worker.model.gpu.flashinfer_library import fault_of
from wavepp_worker.model.gpu.flashinfer_plans import PlannedWrappers
from wavepp_worker.model.gpu.paged_kernel_check import latents_agree_with_torch
from wavepp_worker.model.kv.window_layout import WindowLayout

logger = logging.getLogger(__name__)

_RANK, _ROTARY = 512, 64
"""What there are kernels for."""


@dataclass(frozen=True)
class LatentKind:
    """Layers that share a plan; ``scale`` is the factor on the scores."""

    heads: int
    rank: int
    rotary: int
    block_size: int
    scale: float


class FlashInferLatent:
    """Its kernels on one device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, make_wrapper: Callable[[], Any]) -> None:
        """``make_wrapper``: a new ``BatchMLAPagedAttentionWrapper``."""
        self._device = device
        self._dtype = dtype
        self._wrappers = PlannedWrappers(device, make_wrapper)
        self._takes: dict[LatentSizes, bool] = {}

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        latents: torch.Tensor,
        rotary: torch.Tensor,
        layout: WindowLayout,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention of a wave's tokens over their requests' tokens in the pools, those of the wave included.

        Args:
            module: transformers' attention module.
            query: ``[1, heads, tokens, dim]``, the rotated part last, chunk after chunk.
            latents: the pool, ``[blocks * block_size, 1, rank]``.
            rotary: the pool of rotated keys, ``[blocks * block_size, 1, rotary dim]``.

        Returns:
            ``[1, tokens, heads, value dim]``.

        Raises:
            StepTimeout: plans do not arrive on the device.
        """
        to_keys, to_values = expansion(module, query)
        absorbed, turned = absorbed_queries(query, to_keys)
        read = self.read(absorbed, turned, latents, rotary, layout, block_size, scale)
        return values_of(read, to_values)

    def read(
        self,
        absorbed: torch.Tensor,
        turned: torch.Tensor,
        latents: torch.Tensor,
        rotary: torch.Tensor,
        layout: WindowLayout,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        """What queries read of latents, ``[tokens, heads, rank]``.

        ``absorbed`` and ``turned`` as ``absorbed_queries`` returns them, all else as of ``attend``.
        """
        kind = LatentKind(absorbed.shape[1], absorbed.shape[2], turned.shape[2], block_size, scale)
        if kind not in layout.plans:
            layout.plans[kind] = self._wrappers.plan(kind, lambda wrapper: self._plan(wrapper, kind, layout))
        pools = (pool.view(-1, block_size, pool.shape[-1]) for pool in (latents, rotary))
        out: torch.Tensor = layout.plans[kind].run(absorbed.contiguous(), turned.contiguous(), *pools)
        return out

    def takes(self, sizes: LatentSizes) -> bool:
        """Whether layers of these sizes go through it; asked when a stage starts.

        If the kernels do not work for them, or compute something else than torch, the log says so.
        """
        if (sizes.rank, sizes.rotary) != (_RANK, _ROTARY):
            return False
        if sizes not in self._takes:
            self._takes[sizes] = self._works(sizes)
        return self._takes[sizes]

    @property
    def taken(self) -> bool:
        """Whether any layers go through it."""
        return any(self._takes.values())

    def _works(self, sizes: LatentSizes) -> bool:
        fault = fault_of(lambda: latents_agree_with_torch(self.read, sizes, self._dtype, self._device))
        self._wrappers.clear()
        if fault:
            logger.warning("FlashInfer is installed but not used for latents of %d: %s", sizes.rank, fault)
        return not fault

    def _plan(self, wrapper: Any, kind: LatentKind, layout: WindowLayout) -> None:
        queries, blocks, _ = (page_locked(each, self._device) for each in layout.host_block_bounds())
        wrapper.plan(
            qo_indptr=queries,
            kv_indptr=blocks,
            kv_indices=layout.read_blocks,
            kv_len_arr=page_locked(layout.host_read_lengths(), self._device),
            num_heads=kind.heads,
            head_dim_ckv=kind.rank,
            head_dim_kpe=kind.rotary,
            page_size=kind.block_size,
            causal=True,
            sm_scale=kind.scale,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )
