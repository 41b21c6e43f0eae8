"""The paper's throughput cells: what was asked, and what its tables say was measured (section 5).

Throughput is prompt tokens/s with cached tokens included. Lengths that the paper rounds to thousands are taken
as exact thousands; the Kimi K3 lengths are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.common.systems import WAVE_TOKENS

SUFFIX = 4096
FILLS = 60
"""Waves that a cell computes at least, per stage, so that filling and draining the pipeline is 2 % of its time."""


@dataclass(frozen=True)
class Shape:
    """A prompt of ``tokens`` tokens, of which the first ``cached`` are in the cache."""

    tokens: int
    cached: int = 0

    @property
    def uncached(self) -> int:
        return self.tokens - self.cached

    @property
    def context(self) -> float:
        """Tokens attended, summed over the uncached tokens."""
        return self.uncached * (self.cached + (self.uncached + 1) / 2)


@dataclass(frozen=True)
class Cell:
    """One row of a table.

    Attributes:
        shapes: requests come in this cycle of shapes.
        measured: tokens/s of each pipeline-parallel system.
        wavepp_times: WavePP's p50 and p95 completion in seconds, where the paper has them.
    """

    model: str
    family: str
    concurrency: int
    shapes: tuple[Shape, ...]
    measured: Mapping[str, float]
    wavepp_times: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        return f"{self.model} {self.family} c={self.concurrency}"

    @property
    def cold(self) -> bool:
        return all(shape.cached == 0 for shape in self.shapes)

    @property
    def tokens(self) -> int:
        return sum(shape.tokens for shape in self.shapes)

    @property
    def uncached(self) -> int:
        return sum(shape.uncached for shape in self.shapes)

    @property
    def context(self) -> float:
        return sum(shape.context for shape in self.shapes)


def _warm(tokens: int) -> Shape:
    return Shape(tokens, tokens * 9 // 10)


def _shapes(short: int, long: int) -> dict[str, tuple[Shape, ...]]:
    return {
        "short cold": (Shape(short),),
        "long cold": (Shape(long),),
        "short reuse": (_warm(short),),
        "long reuse": (_warm(long),),
        "mixed": (_warm(short), _warm(short), _warm(short), Shape(long)),
        "4K suffix": (Shape(125_000 + SUFFIX, 125_000),),
    }


# Family: concurrency: (TRT-LLM PP4, WavePP), first for GLM 5.2, then for MiniMax M2.7.
_PP4 = {
    "short cold": {
        8: ((46_658, 47_552), (50_677, 54_457)),
        16: ((46_207, 48_071), (50_127, 54_642)),
        32: ((45_730, 47_864), (49_596, 54_615)),
    },
    "long cold": {
        8: ((41_839, 43_456), (37_146, 40_388)),
        16: ((41_610, 43_310), (37_051, 40_363)),
        32: ((40_844, 43_357), (36_789, 40_165)),
    },
    "short reuse": {
        8: ((309_301, 309_762), (283_199, 303_921)),
        16: ((351_119, 391_338), (344_174, 375_368)),
        32: ((321_750, 378_951), (315_446, 348_107)),
    },
    "long reuse": {
        8: ((316_516, 278_418), (250_815, 206_548)),
        16: ((297_822, 310_786), (239_657, 241_150)),
        32: ((264_520, 306_497), (227_220, 236_459)),
    },
    "mixed": {
        8: ((89_844, 92_759), (91_270, 99_810)),
        16: ((87_974, 93_515), (91_314, 100_117)),
        32: ((84_387, 92_080), (89_427, 99_039)),
    },
    "4K suffix": {
        8: ((497_230, 503_184), (435_088, 441_314)),
        16: ((658_662, 661_230), (642_896, 606_764)),
        32: ((884_810, 895_482), (872_496, 886_305)),
        64: ((835_235, 1_160_931), (832_645, 1_039_376)),
        128: ((416_294, 1_212_572), (551_143, 1_113_196)),
    },
}

# Family: concurrency: (vLLM PP8, SGLang PP8, WavePP), WavePP's p50 and p95.
_PP8 = {
    "cold 65.5K": {
        1: ((20_361, 16_691, 22_089), (3.0, 3.0)),
        4: ((41_554, 39_926, 37_467), (6.8, 7.1)),
        8: ((41_980, 40_458, 43_007), (11.8, 12.4)),
        16: ((42_242, 40_852, 44_746), (22.8, 23.2)),
        32: ((42_456, 41_180, 44_643), (45.4, 45.9)),
    },
    "cold 131K": {
        1: ((23_030, 21_014, 20_699), (6.3, 6.4)),
        4: ((33_089, 33_662, 35_765), (14.2, 14.8)),
        8: ((33_242, 33_873, 36_030), (28.5, 29.1)),
        16: ((33_322, 33_984, 36_129), (56.8, 57.6)),
        32: ((33_410, 34_102, 35_878), (114.4, 116.3)),
    },
    "cold 262K": {
        1: ((21_479, 21_754, 21_065), (12.4, 12.8)),
        4: ((25_224, 27_041, 27_924), (37.1, 37.7)),
        8: ((25_271, 27_110, 27_988), (74.2, 74.8)),
        16: ((25_296, 27_144, 27_971), (149.0, 149.7)),
        32: ((25_321, 27_179, 28_031), (297.8, 298.9)),
    },
    "reuse 131K": {
        1: ((43_197, 41_022, 56_810), (2.3, 2.3)),
        4: ((130_420, 134_161, 124_682), (4.2, 4.5)),
        8: ((171_714, 228_012, 255_406), (3.7, 5.5)),
        16: ((212_477, 249_227, 262_740), (7.3, 9.6)),
        32: ((219_649, 253_844, 289_096), (13.2, 17.0)),
    },
    "reuse 262K": {
        1: ((49_238, 45_127, 64_674), (4.1, 4.1)),
        4: ((118_899, 140_713, 176_960), (5.7, 6.2)),
        8: ((139_579, 180_199, 190_842), (10.6, 12.7)),
        16: ((141_134, 183_182, 220_899), (18.1, 19.3)),
        32: ((141_248, 184_753, 218_743), (35.8, 39.7)),
    },
    "mixed": {
        8: ((53_129, 58_079, 61_063), (21.0, 25.6)),
        16: ((53_551, 58_468, 61_436), (41.9, 51.1)),
        32: ((53_678, 58_348, 61_190), (83.8, 109.7)),
    },
}
_K = 65_536
_PP8_SHAPES = {
    "cold 65.5K": (Shape(_K),),
    "cold 131K": (Shape(2 * _K),),
    "cold 262K": (Shape(4 * _K),),
    "reuse 131K": (_warm(2 * _K),),
    "reuse 262K": (_warm(4 * _K),),
    "mixed": (_warm(2 * _K), _warm(2 * _K), _warm(2 * _K), Shape(4 * _K)),
}


def _cells() -> list[Cell]:
    cells = []
    for column, (model, lengths) in enumerate(
        {"glm-5.2-pp4": (128_000, 260_000), "minimax-m2.7-pp4": (129_000, 195_000)}.items()
    ):
        shapes = _shapes(*lengths)
        for family, rows in _PP4.items():
            for c, row in rows.items():
                measured = dict(zip(("TRT-LLM", "WavePP"), row[column], strict=True))
                cells.append(Cell(model, family, c, shapes[family], measured))
    for family, points in _PP8.items():
        for c, (point, times) in points.items():
            of_three = dict(zip(("vLLM", "SGLang", "WavePP"), point, strict=True))
            cells.append(Cell("kimi-k3-pp8", family, c, _PP8_SHAPES[family], of_three, times))
    return cells


CELLS: tuple[Cell, ...] = tuple(_cells())
"""The 40 PP4 cells, then the 28 of Kimi K3."""


def cell_named(name: str) -> Cell:
    """The cell of this name.

    Raises:
        ValueError: there is none.
    """
    for cell in CELLS:
        if cell.name == name:
            return cell
    raise ValueError(f"{name!r} is not a cell of the paper; one is {CELLS[0].name!r}, bench.paper prints all")


def enough_requests(cell: Cell, stages: int, per_client: int = 3) -> int:
    """Requests of a cell: 16 in all, ``per_client``, and ``FILLS`` times the pipeline's waves at least."""
    uncached = cell.uncached / len(cell.shapes)
    return max(16, per_client * cell.concurrency, math.ceil(FILLS * stages * WAVE_TOKENS / uncached))
