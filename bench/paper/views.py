"""Measured rows, arranged by the paper's cells; what tables, figures and the verdict share."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.common.cells import CELLS, Cell
from bench.common.policies import in_table_order
from bench.paper.rows import CellRow, Idle, cell_key

TITLES = {
    "glm-5.2-pp4": "GLM 5.2 PP4",
    "minimax-m2.7-pp4": "MiniMax M2.7 PP4",
    "kimi-k3-pp8": "Kimi K3 PP8",
}
PP4 = ("glm-5.2-pp4", "minimax-m2.7-pp4")
K3 = "kimi-k3-pp8"
CAUSES = {
    "no_work": "no work",
    "admission": "admission",
    "upstream": "upstream",
    "local": "own host",
}
"""Fields of ``Idle`` and their names."""


class Results:
    """Rows by cell and policy; of two rows for the same measurement the later counts.

    Attributes:
        rows: those of the paper's cells.
        cells: the paper's cells that have a row, in the paper's order.
        policies: those that have a row, in the order of ``POLICIES``.
        unknown: how many rows belong to no cell of the paper.
    """

    def __init__(self, rows: Sequence[CellRow]) -> None:
        self._rows = {row.key: row for row in rows}
        self.policies = in_table_order(row.policy for row in rows)
        self.cells = [cell for cell in CELLS if self.of(cell)]
        self.rows = [row for cell in self.cells for row in self.of(cell).values()]
        self.unknown = len(self._rows) - len(self.rows)

    def row(self, cell: Cell, policy: str) -> CellRow | None:
        return self._rows.get(cell_key(policy, cell))

    def of(self, cell: Cell) -> dict[str, CellRow]:
        """The rows of a cell by policy, in the order of ``policies``."""
        rows = ((policy, self.row(cell, policy)) for policy in self.policies)
        return {policy: row for policy, row in rows if row is not None}

    def of_model(self, model: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.model == model]

    def of_family(self, model: str, family: str) -> list[Cell]:
        return [cell for cell in self.of_model(model) if cell.family == family]

    def policies_of(self, model: str) -> list[str]:
        """The policies that have a row for one of the model's cells."""
        found = {policy for cell in self.of_model(model) for policy in self.of(cell)}
        return [policy for policy in self.policies if policy in found]

    def bound(self, cell: Cell) -> float:
        return next(iter(self.of(cell).values())).bound

    def best(self, cell: Cell) -> str:
        """The policy with the highest throughput."""
        rows = self.of(cell)
        return max(rows, key=lambda policy: rows[policy].throughput)


def find_cell(name: str, cells: Sequence[Cell]) -> Cell:
    """The cell of this name, or the only one whose name contains it.

    Raises:
        ValueError: none or several do.
    """
    found = [cell for cell in cells if cell.name == name] or [cell for cell in cells if name in cell.name]
    if len(found) != 1:
        names = ", ".join(cell.name for cell in found or cells)
        raise ValueError(f"{name!r} names {len(found)} of the measured cells; name one of: {names}")
    return found[0]


def mean_idle(row: CellRow) -> Idle | None:
    """The mean over the stages, where it was measured."""
    if not row.idle:
        return None
    return Idle(**{cause: fmean(getattr(stage, cause) for stage in row.idle) for cause in CAUSES})


def change(value: float, base: float, digits: int = 1) -> str:
    """``value`` against ``base`` in per cent."""
    text = f"{value / base - 1:+.{digits}%}"
    zero = f"{0:.{digits}%}"
    return zero if text[1:] == zero else text


def others(cell: Cell) -> float:
    """Tokens/s of the best system that the paper compares WavePP with."""
    return max(value for name, value in cell.measured.items() if name != "WavePP")
