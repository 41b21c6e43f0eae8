"""Whole blocks of some pools, copied out and in: what tiers keep of a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from wavepp_worker.model.device.cuda_device import to_device


class WindowMemory:
    """Implements ``BlockMemory``: the blocks of pools that are addressed alike.

    Args:
        pools: ``[num_blocks * block, heads, dim]`` each.
    """

    def __init__(self, pools: Sequence[torch.Tensor], num_blocks: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.device = device
        self._pools = [pool.view(num_blocks, -1) for pool in pools]
        self.block_bytes = sum(row_bytes(pool) for pool in self._pools)

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        payload = torch.empty(len(blocks), self.block_bytes, dtype=torch.uint8, device=self.device)
        where = to_device(blocks, self.device)
        for pool, part in self._parts(payload):
            torch.index_select(pool, 0, where, out=part)
        return payload

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        where = to_device(blocks, self.device)
        for pool, part in self._parts(payload):
            pool.index_copy_(0, where, part)

    def _parts(self, payload: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each pool as ``[num_blocks, elements]`` with its columns of ``payload``, in the pool's dtype."""
        at = 0
        for pool in self._pools:
            size = row_bytes(pool)
            yield pool, payload[:, at : at + size].view(pool.dtype)
            at += size


def row_bytes(pool: torch.Tensor) -> int:
    """Of one row along the first dimension."""
    return pool[0].numel() * pool.element_size()
