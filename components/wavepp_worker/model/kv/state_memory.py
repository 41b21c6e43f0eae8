"""One rank's memory for the states of its recurrent layers: running ones and snapshots, in blocks of one size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch

from wavepp_worker.errors import HandoffMismatch
from wavepp_worker.model.device.cuda_device import to_device
from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache

_ALIGNED = 16
_WAVES_BLOCKS = 256
"""Lists of blocks whose tensors are kept: more than one wave has."""


class StateMemory:
    """Implements ``BlockMemory``. A block is the state of all of a stage's recurrent layers at one position.

    Within a block the layers follow one another, each with its tensors, so what a stage of fewer layers has in a block
    is a part of it without gaps.
    """

    def __init__(
        self, caches: dict[int, LayerCache], num_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``caches``: by the layer's number in the model, ascending. ``dtype``: of tensors that say no other."""
        self.num_blocks = num_blocks
        self.device = device
        # All layers of a wave ask for the same blocks.
        self._where = lru_cache(_WAVES_BLOCKS)(lambda blocks: to_device(torch.tensor(blocks), device))
        self._starts: dict[int, int] = {}
        parts: list[tuple[int, CachedTensor, torch.dtype, slice]] = []
        at = 0
        for layer, cache in caches.items():
            self._starts[layer] = at
            for tensor in cache.tensors:
                kept = dtype if tensor.dtype is None else getattr(torch, tensor.dtype)
                size = prod(tensor.shape) * kept.itemsize
                parts.append((layer, tensor, kept, slice(at, at + size)))
                at += -(-size // _ALIGNED) * _ALIGNED
        self.block_bytes = at
        self._rows = torch.zeros(num_blocks, at, dtype=torch.uint8, device=device)
        self._layers: dict[int, list[torch.Tensor]] = {layer: [] for layer in caches}
        for layer, tensor, kept, where in parts:
            self._layers[layer].append(self._rows[:, where].view(kept).unflatten(1, tensor.shape))

    def load(self, layer: int, blocks: list[int]) -> list[torch.Tensor]:
        """Copies of a layer's tensors in these blocks, each ``[n, ...]``."""
        where = self._where(tuple(blocks))
        return [tensor.index_select(0, where) for tensor in self._layers[layer]]

    def store(self, layer: int, blocks: list[int], tensors: Sequence[torch.Tensor]) -> None:
        """Write what ``load`` returned, to as many different blocks."""
        where = self._where(tuple(blocks))
        for pool, new in zip(self._layers[layer], tensors, strict=True):
            pool.index_copy_(0, where, new.to(pool.dtype))

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        return self._rows.index_select(0, to_device(blocks, self.device))

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        self._rows.index_copy_(0, to_device(blocks, self.device), payload)

    def whole(self) -> tuple[int, int]:
        """``(address, bytes)`` of the allocation."""
        return self._rows.data_ptr(), self._rows.numel()

    def import_state(self, block: int, layers: range, payload: torch.Tensor) -> None:
        """Write what a rank that holds ``layers`` has in a block of its own: uint8 ``[its block_bytes]``.

        Raises:
            HandoffMismatch: the payload has another size than these layers' states.
        """
        first, end = self._span(layers)
        if payload.dtype != torch.uint8 or payload.numel() != end - first:
            raise HandoffMismatch(
                f"a state of layers {layers.start} to {layers.stop - 1} takes {end - first} bytes but the payload has "
                f"{payload.numel() * payload.element_size()}; both sides must have the same model and dtype"
            )
        self._rows[block, first:end].copy_(payload, non_blocking=True)

    def _span(self, layers: range) -> tuple[int, int]:
        """Bytes ``[first, end)`` of a block that belong to ``layers``."""
        first = min(
            (at for layer, at in self._starts.items() if layer >= layers.start), default=self.block_bytes
        )
        end = min(
            (at for layer, at in self._starts.items() if layer >= layers.stop), default=self.block_bytes
        )
        return first, end
