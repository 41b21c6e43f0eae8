"""Tables of bursts, trees and agents: ``python -m bench.bursts.report FILE`` prints a kept run's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.bursts.rows import BurstRow
from bench.common.kept import origins, read_kept
from bench.common.tables import NOTHING, plain_table, print_table

MOST_EXCESS = 1.05
"""Computed tokens over the fewest possible, at most."""
LEAST_SHARE, MANY = 0.95, 16
"""Share of the tighter bound, at least, where as many sessions as ``MANY`` or more are under way."""


def burst_table(rows: Sequence[BurstRow], clock: str, stages: int, interval: int) -> Table:
    """One cell a line, with reuse in the making and without it."""
    mine = [row for row in rows if (row.clock, row.stages, row.interval) == (clock, stages, interval)]
    before = {row.name: row for row in mine if not row.making}
    table = plain_table(
        f"{'virtual devices' if clock == 'virtual' else 'real compute'}, {stages} stages"
        + (f", a snapshot every {interval} tokens" if interval else ""),
        f"each cell: with reuse in the making, and in brackets without; measured: {origins(mine)}",
        texts=["cell"],
        numbers=[
            "computed / least",
            "of the bound",
            "of the forced",
            "last answer s",
            "p50 s",
            "p95 s",
            "waves",
            "rounds",
        ],
    )
    for row in mine:
        if row.making:
            table.add_row(row.name, *_pairs(row, before.get(row.name)), str(row.waves), str(row.rounds))
    return table


def _pairs(row: BurstRow, before: BurstRow | None) -> list[str]:
    both = [row] if before is None else [row, before]
    columns = (
        [f"{each.excess:.3f}" for each in both],
        [_share(each.bound, each) for each in both],
        [_share(each.forced, each) for each in both],
        [f"{each.seconds:.2f}" for each in both],
        [f"{each.p50:.2f}" for each in both],
        [f"{each.p95:.2f}" for each in both],
    )
    return [f"{column[0]} ({column[1]})" if len(column) > 1 else column[0] for column in columns]


def _share(bound: float, row: BurstRow) -> str:
    return f"{bound / row.seconds:.1%}" if bound else NOTHING


def missed(rows: Sequence[BurstRow]) -> list[str]:
    """Sentences about the cells with reuse in the making that compute too much or end too late."""
    sentences = []
    for row in rows:
        if not row.making:
            continue
        where = f"{row.name}, {row.clock}, {row.stages} stages"
        where += f", a snapshot every {row.interval} tokens" if row.interval else ""
        if row.excess > MOST_EXCESS:
            sentences.append(f"{where}: computed {row.excess:.3f} of the fewest tokens")
        if row.bound and row.sessions >= MANY and max(row.bound, row.forced) / row.seconds < LEAST_SHARE:
            forced = f", {_share(row.forced, row)} of the forced" if row.forced else ""
            sentences.append(f"{where}: {_share(row.bound, row)} of the bound{forced}")
    return sentences


def print_report(rows: Sequence[BurstRow], console: Console) -> None:
    """Print a table for each clock and number of stages, and what was missed."""
    for clock, stages, interval in sorted({(row.clock, row.stages, row.interval) for row in rows}):
        print_table(console, burst_table(rows, clock, stages, interval))
    making = [row for row in rows if row.making]
    misses = missed(rows)
    for sentence in misses:
        console.print(f"MISSED {sentence}")
    if making:
        worst = max(row.excess for row in making)
        console.print(
            f"{len(making)} cells: computed at most {worst:.3f} and in the median "
            f"{statistics.median(row.excess for row in making):.3f} of the fewest tokens; {len(misses)} missed"
        )


def main(
    file: Annotated[Path, typer.Argument(help="A kept run.", exists=True, dir_okay=False)],
) -> None:
    """Print the tables of a kept run."""
    print_report(read_kept(file, BurstRow), Console())


if __name__ == "__main__":
    typer.run(main)
