"""Attention on a GPU that reads keys and values where they lie: the kernels of FlashInfer, where that is installed.

Written after FlashInfer 0.7.2, and not run on a GPU yet. So nothing is taken on trust: when a stage starts, the kernels
have to compute what torch computes (``agrees_with_torch``). That also compiles them, which may take minutes the first
time.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.device.cuda_device import page_locked
from wavepp_worker.model.gpu.flashinfer_latent import FlashInferLatent
from wavepp_worker.model.gpu.flashinfer_library import fault_of, installed_for
from wavepp_worker.model.gpu.flashinfer_plans import PlannedWrappers
from wavepp_worker.model.gpu.paged_kernel_check import agrees_with_torch
from wavepp_worker.model.kv.window_layout import WindowLayout

logger = logging.getLogger(__name__)

_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 << 20
"""As much as its documentation recommends."""


@dataclass(frozen=True)
class Kind:
    """Layers that share a plan.

    Attributes:
        window: tokens that a token sees, itself included; None for all before it.
        span: of the window that their pools keep.
        block_size: tokens per block.
        scale: factor on the scores.
    """

    heads: Heads
    window: int | None
    span: int
    block_size: int
    scale: float


class FlashInfer:
    """Its kernels on one device.

    Attributes:
        latent: those for latent attention; None where there are none.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        make_wrapper: Callable[[], Any],
        latent: FlashInferLatent | None = None,
    ) -> None:
        """``make_wrapper``: a new ``BatchPrefillWithPagedKVCacheWrapper``, of layout ``NHD``."""
        self._device = device
        self._dtype = dtype
        self._wrappers = PlannedWrappers(device, make_wrapper)
        self.latent = latent
        self._takes: dict[tuple[Heads, int | None], bool] = {}

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layout: WindowLayout,
        block_size: int,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """Causal attention of a wave's tokens over their requests' tokens in the pools, those of the wave included.

        Args:
            query: ``[1, heads, tokens, dim]``, chunk after chunk.
            keys: the pool, ``[blocks * block_size, key heads, dim]``.
            values: likewise.
            window: tokens that a token sees, itself included; None for all before it.

        Returns:
            ``[1, tokens, heads, dim]``.

        Raises:
            StepTimeout: plans do not arrive on the device.
        """
        heads = Heads(query.shape[1], keys.shape[1], query.shape[3])
        kind = Kind(heads, window, layout.span, block_size, scale)
        if kind not in layout.plans:
            layout.plans[kind] = self._wrappers.plan(kind, lambda wrapper: self._plan(wrapper, kind, layout))
        pools = tuple(pool.view(-1, block_size, *pool.shape[1:]) for pool in (keys, values))
        out: torch.Tensor = layout.plans[kind].run(query[0].transpose(0, 1).contiguous(), pools)
        return out[None]

    def takes(self, heads: Heads, window: int | None) -> bool:
        """Whether layers with these heads go through it; asked when a stage starts.

        If the kernels do not work for them, or compute something else than torch, the log says so.
        """
        if heads.dim not in _DIMS or heads.queries % heads.keys:
            return False
        if (heads, window) not in self._takes:
            self._takes[heads, window] = self._works(heads, window)
        return self._takes[heads, window]

    @property
    def taken(self) -> bool:
        """Whether any layers go through it."""
        return any(self._takes.values()) or (self.latent is not None and self.latent.taken)

    def _works(self, heads: Heads, window: int | None) -> bool:
        fault = fault_of(lambda: agrees_with_torch(self.attend, heads, window, self._dtype, self._device))
        self._wrappers.clear()
        if fault:
            logger.warning(
                "FlashInfer is installed but not used for %d heads of queries, %d of keys and dim %d: %s",
                *(heads.queries, heads.keys, heads.dim, fault),
            )
        return not fault

    def _plan(self, wrapper: Any, kind: Kind, layout: WindowLayout) -> None:
        queries, blocks, last = (page_locked(each, self._device) for each in layout.host_block_bounds())
        wrapper.plan(
            queries,
            blocks,
            layout.read_blocks,
            last,
            kind.heads.queries,
            kind.heads.keys,
            kind.heads.dim,
            kind.block_size,
            causal=True,
            sm_scale=kind.scale,
            # To the left it does not count the token itself.
            window_left=-1 if kind.window is None else kind.window - 1,
            q_data_type=self._dtype,
        )


def find_flashinfer(device: torch.device, dtype: torch.dtype) -> FlashInfer | None:
    """FlashInfer for a device, if it is installed and may have kernels there for numbers of a dtype."""
    if not installed_for(device, dtype):
        return None
    try:
        library = importlib.import_module("flashinfer")
        wrapper, latent = library.BatchPrefillWithPagedKVCacheWrapper, _latent_wrapper(library)
        # What waves leave in it is over when the next one begins: they follow each other on one stream.
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    except Exception as error:
        logger.warning("FlashInfer is installed but cannot be used: %s", error)
        return None
    of_latents = None if latent is None else FlashInferLatent(device, dtype, lambda: latent(workspace))
    return FlashInfer(device, dtype, lambda: wrapper(workspace, "NHD"), of_latents)


def _latent_wrapper(library: Any) -> Any:
    return getattr(getattr(library, "mla", None), "BatchMLAPagedAttentionWrapper", None)
