"""What moved between two commits: ``python -m bench.paper.compare OLD.json NEW.json``.

Both files are what ``bench.paper --out`` kept, at one commit each. Cells that only one of them has are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.common.kept import origins, read_kept
from bench.common.tables import plain_table, print_table
from bench.paper.rows import CellRow
from bench.paper.views import change


@dataclass(frozen=True)
class CellMove:
    """One cell under one policy, measured twice.

    Attributes:
        throughput: the new one over the old one; ``p95`` alike.
    """

    old: CellRow
    new: CellRow

    @property
    def throughput(self) -> float:
        return self.new.throughput / self.old.throughput

    @property
    def p95(self) -> float:
        return self.new.p95 / self.old.p95

    @property
    def name(self) -> str:
        return f"{self.new.model} {self.new.family} c={self.new.concurrency}"

    def beyond(self, tolerance: float) -> bool:
        """Whether throughput moved by more than ``tolerance``, a share, up or down."""
        return abs(self.throughput - 1) > tolerance


def moves(old: Sequence[CellRow], new: Sequence[CellRow]) -> list[CellMove]:
    """The measurements that both have, those whose throughput moved most first.

    Raises:
        ValueError: they have none in common, or were measured on different clocks.
    """
    before = {row.key: row for row in old}
    after = {row.key: row for row in new}
    both = [CellMove(before[key], row) for key, row in after.items() if key in before]
    if not both:
        raise ValueError(
            "the two files have no measurement in common; give files with the same cells and policies"
        )
    clocks = {(row.clock, row.speed) for move in both for row in (move.old, move.new)}
    if len(clocks) > 1:
        names = " and ".join(f"the {clock} clock at speed {speed:g}" for clock, speed in sorted(clocks))
        raise ValueError(f"measured on {names}: these do not compare; give files of one clock")
    return sorted(both, key=lambda move: -abs(move.throughput - 1))


def moves_table(found: Sequence[CellMove], tolerance: float) -> Table:
    """A line per measurement; throughput that moved by more than ``tolerance`` is red."""
    table = plain_table(
        "New against old, largest moves first",
        "requests: old/new, where the cell was measured with different numbers of them",
        texts=["cell", "policy"],
        numbers=["old tok/s", "new tok/s", "change", "old p95 s", "new p95 s", "change", "requests"],
    )
    for move in found:
        old, new = move.old, move.new
        moved = change(new.throughput, old.throughput, digits=2)
        table.add_row(
            move.name,
            new.policy,
            f"{old.throughput:,.0f}",
            f"{new.throughput:,.0f}",
            f"[red]{moved}" if move.beyond(tolerance) else moved,
            f"{old.p95:.2f}",
            f"{new.p95:.2f}",
            change(new.p95, old.p95, digits=2),
            "" if old.requests == new.requests else f"{old.requests}/{new.requests}",
        )
    return table


def main(
    old: Annotated[Path, typer.Argument(help="Kept at one commit.", exists=True, dir_okay=False)],
    new: Annotated[Path, typer.Argument(help="Kept at another.", exists=True, dir_okay=False)],
    tolerance: Annotated[float, typer.Option(min=0, help="Per cent that throughput may move.")] = 1.0,
) -> None:
    """Print how throughput and p95 moved; exits with 1 if some throughput moved by more than the tolerance."""
    before, after = read_kept(old, CellRow), read_kept(new, CellRow)
    try:
        found = moves(before, after)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print_table(Console(), moves_table(found, tolerance / 100))
    beyond = sum(move.beyond(tolerance / 100) for move in found)
    typer.echo(f"old: {origins([move.old for move in found])}")
    typer.echo(f"new: {origins([move.new for move in found])}")
    lone = [len({row.key for row in rows}) - len(found) for rows in (before, after)]
    if any(lone):
        typer.echo(f"in one file only: {lone[0]} old, {lone[1]} new")
    typer.echo(f"{beyond} of {len(found)} throughputs moved by more than {tolerance:g} %")
    if beyond:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
