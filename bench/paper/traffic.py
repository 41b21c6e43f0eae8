"""Prompts of the paper's cells, and how many of them a cell needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bench.paper.cells import Cell
from bench.paper.cost_models import VOCABULARY, M

PREFIXES = 4
"""Prefixes that the requests of a cell share in turns; the paper does not say how many it had."""
FILLS = 60
"""Waves that a cell computes at least, per stage, so that filling and draining the pipeline is 2 % of its time."""


class Traffic:
    """Prompts as packed uint32 token ids, drawn anew from ``seed``; prefixes are drawn once per length."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._prefixes: dict[int, list[bytes]] = {}

    def tokens(self, count: int) -> bytes:
        return self._draw.integers(0, VOCABULARY, count, dtype=np.uint32).astype("<u4").tobytes()

    def prefixes(self, length: int) -> list[bytes]:
        if length not in self._prefixes:
            self._prefixes[length] = [self.tokens(length) for _ in range(PREFIXES)]
        return self._prefixes[length]

    def seeds(self, cell: Cell) -> Iterator[bytes]:
        """The prefixes that are in the cache before a cell is timed."""
        for cached in sorted({shape.cached for shape in cell.shapes if shape.cached}):
            yield from self.prefixes(cached)

    def prompts(self, cell: Cell, count: int) -> Iterator[bytes]:
        """``count`` prompts of a cell's shapes in turn."""
        for index in range(count):
            shape = cell.shapes[index % len(cell.shapes)]
            prefix = b""
            if shape.cached:
                prefix = self.prefixes(shape.cached)[index // len(cell.shapes) % PREFIXES]
            yield prefix + self.tokens(shape.uncached)


def enough_requests(cell: Cell, stages: int, per_client: int = 3) -> int:
    """Requests of a cell: 16 in all, ``per_client``, and ``FILLS`` times the pipeline's waves at least."""
    uncached = cell.uncached / len(cell.shapes)
    return max(16, per_client * cell.concurrency, math.ceil(FILLS * stages * M / uncached))
