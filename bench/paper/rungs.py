"""The ablation R1 to R4 (paper, section 5.8): what each mechanism adds, and which idle time it removes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.common.cells import Cell, cell_named
from bench.common.policies import RUNGS
from bench.paper.rows import CellRow, Idle
from bench.paper.views import CAUSES, Results, mean_idle


@dataclass(frozen=True)
class Reported:
    """What the paper says of one cell, on another machine than its tables (B300): by rung, where it says it.

    Attributes:
        throughput: prompt tokens/s.
        gain: the change against the rung before.
        p50: completion seconds.
    """

    throughput: dict[str, float]
    gain: dict[str, float]
    p50: dict[str, float]


_REPORTED = {
    "cold 131K c=16": Reported(
        {"R1": 8_826, "R2": 29_692}, {"R2": 29_692 / 8_826 - 1, "R4": 0.014}, {"R3": 69.69, "R4": 43.03}
    ),
    "reuse 131K c=8": Reported(
        {"R2": 96_796, "R3": 149_021, "R4": 211_214},
        {"R3": 149_021 / 96_796 - 1, "R4": 211_214 / 149_021 - 1},
        {"R3": 6.51, "R4": 4.20},
    ),
    "reuse 262K c=32": Reported({"R3": 175_305, "R4": 158_238}, {"R4": 158_238 / 175_305 - 1}, {}),
}


@dataclass(frozen=True)
class Step:
    """One rung of one cell. Changes are against the rung before, and None where that one was not measured.

    Attributes:
        gain: of throughput; ``(1 + busier) * (1 + faster) - 1``.
        busier: of the share of time in which a stage works.
        faster: of prompt tokens per second of work (fuller waves, or less that is computed twice).
        idle: by cause, in shares of the time: what this rung has more.
    """

    rung: str
    row: CellRow | None
    gain: float | None = None
    busier: float | None = None
    faster: float | None = None
    idle: Idle | None = None


def ablation_cells(results: Results) -> list[tuple[Cell, Reported]]:
    """The cells of the paper's ablation of which a rung was measured."""
    cells = ((cell_named(f"kimi-k3-pp8 {name}"), reported) for name, reported in _REPORTED.items())
    return [(cell, said) for cell, said in cells if any(results.row(cell, p) for p in RUNGS.values())]


def steps(results: Results, cell: Cell) -> Iterator[Step]:
    """The rungs of a cell, R1 first."""
    before: CellRow | None = None
    for rung, policy in RUNGS.items():
        row = results.row(cell, policy)
        yield Step(rung, row) if row is None or before is None else _step(rung, row, before)
        before = row


def _step(rung: str, row: CellRow, before: CellRow) -> Step:
    gain = row.throughput / before.throughput - 1
    idle, idle_before = mean_idle(row), mean_idle(before)
    if idle is None or idle_before is None:
        return Step(rung, row, gain)
    busier = (1 - idle.total) / (1 - idle_before.total) - 1
    more = {cause: getattr(idle, cause) - getattr(idle_before, cause) for cause in CAUSES}
    return Step(rung, row, gain, busier, (1 + gain) / (1 + busier) - 1, Idle(**more))
