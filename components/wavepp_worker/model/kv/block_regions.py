"""Where the blocks of tokens lie in memory, for transfer libraries that are told addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavepp_worker.errors import WaveppError


@dataclass(frozen=True)
class BlockRegions:
    """A block of tokens takes one region of each of ``n`` pools, which hold the tokens one after the other.

    Attributes:
        firsts: uint64 ``[n]``, addresses of block 0.
        sizes: uint64 ``[n]``, bytes of a block.
        windows: int64 ``[n]``, by which row of block tables each pool is addressed.
        blocks: int64 ``[n]``, how many each pool has.
    """

    firsts: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    windows: NDArray[np.int64]
    blocks: NDArray[np.int64]

    @classmethod
    def of(cls, pools: list[tuple[int, int, int, int]]) -> BlockRegions:
        """Of pools in the order of ``(first address, bytes of a block, window, blocks)``."""
        firsts, sizes, windows, blocks = np.array(pools, dtype=np.int64).reshape(-1, 4).T
        return cls(firsts.astype(np.uint64), sizes.astype(np.uint64), windows, blocks)

    def __len__(self) -> int:
        return len(self.firsts)

    def addresses(self, table: NDArray[np.int64]) -> NDArray[np.uint64]:
        """``[columns, n]``; 0 where the table says that a window has let go of these tokens.

        Args:
            table: ``[windows, columns]``, physical blocks, less than 0 for none.

        Raises:
            WaveppError: a block does not exist.
        """
        rows = table[self.windows].T
        wrong = rows >= self.blocks
        if wrong.any():
            row, pool = np.argwhere(wrong)[0]
            raise WaveppError(f"block {rows[row, pool]} does not exist; this rank has {self.blocks[pool]}")
        held = rows >= 0
        found = self.firsts + np.where(held, rows, 0).astype(np.uint64) * self.sizes
        return np.where(held, found, np.uint64(0))
