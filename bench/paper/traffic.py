"""Prompts of the paper's cells."""

from __future__ import annotations

from collections.abc import Iterator

from bench.common.cells import Cell
from bench.common.prompts import Prompts
from bench.common.systems import WAVE_TOKENS

PREFIXES = 4
"""Prefixes that the requests of a cell share in turns; the paper does not say how many it had."""


class CellTraffic:
    """Prompts as packed token ids, drawn anew from ``seed``; prefixes are drawn once per length."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = Prompts(seed)
        self._prefixes: dict[int, list[bytes]] = {}

    def tokens(self, count: int) -> bytes:
        """A cold prompt of ``count`` tokens."""
        return self._draw.tokens(count)

    def prefixes(self, length: int) -> list[bytes]:
        if length not in self._prefixes:
            self._prefixes[length] = [self.tokens(length) for _ in range(PREFIXES)]
        return self._prefixes[length]

    def seeds(self, cell: Cell) -> Iterator[bytes]:
        """The prefixes that are in the cache before a cell is timed."""
        for cached in sorted({shape.cached for shape in cell.shapes if shape.cached}):
            yield from self.prefixes(cached)

    def filling(self, kv_tokens: int) -> Iterator[bytes]:
        """Cold prompts of two waves each, ``kv_tokens`` tokens in all."""
        return (self.tokens(2 * WAVE_TOKENS) for _ in range(kv_tokens // (2 * WAVE_TOKENS)))

    def prompts(self, cell: Cell, count: int) -> Iterator[bytes]:
        """``count`` prompts of a cell's shapes in turn."""
        for index in range(count):
            shape = cell.shapes[index % len(cell.shapes)]
            prefix = b""
            if shape.cached:
                prefix = self.prefixes(shape.cached)[index // len(cell.shapes) % PREFIXES]
            yield prefix + self.tokens(shape.uncached)
