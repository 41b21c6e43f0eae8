"""Blocks that a rank keeps account of, and no layer of it keeps anything in."""

from __future__ import annotations

import torch


class NoMemory:
    """Implements ``BlockMemory``: a byte stands for a block, and is always 0."""

    block_bytes = 1

    def __init__(self, num_blocks: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.device = device

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(blocks), self.block_bytes, dtype=torch.uint8, device=self.device)

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        """There is nothing to write."""
