"""The tables of a kept run: ``python -m bench.routing.report FILE``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.common.kept import origins, read_kept
from bench.common.tables import NOTHING, plain_table, print_table
from bench.routing.rows import Row

AT_REST = "one at a time"
"""The name of the row of an idle graph."""


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print what each workload got, and how far the router's idea of it was off."""
    table = plain_table(
        "requests routed over replicas",
        f"measured: {origins(rows)}; virtual devices, real processes",
        texts=["workload", "router", "options", "requests by replica"],
        numbers=["replicas", "reused", "tokens/s", "p50 s", "p95 s", "cores busy"],
    )
    off = plain_table(
        "blocks that the router believed to be reusable at the replica it chose, against those that were",
        texts=["workload", "options"],
        numbers=["replicas", "requests", "mean error", "most", "exact", "believed", "reused"],
    )
    for row in sorted(rows, key=lambda each: (each.workload == AT_REST, each.replicas, each.workload)):
        table.add_row(
            row.workload,
            row.mode,
            row.options or NOTHING,
            row.spread(),
            str(row.replicas),
            f"{row.hit_rate:.1%}",
            f"{row.throughput:,.0f}",
            f"{row.time(0.5):.2f}",
            f"{row.time(0.95):.2f}",
            f"{row.busy:.0%}",
        )
        if errors := row.errors():
            believed = [each.foretold for each in row.answers if each.foretold is not None]
            off.add_row(
                row.workload,
                row.options or NOTHING,
                str(row.replicas),
                str(len(errors)),
                f"{statistics.fmean(errors):.2f}",
                f"{max(errors):.1f}",
                f"{sum(error < 0.5 for error in errors) / len(errors):.0%}",
                f"{statistics.fmean(believed):.1%}",
                f"{statistics.fmean(each.reused / each.prompt for each in row.answers):.1%}",
            )
    print_table(console, table)
    print_table(console, off)


def main(file: Annotated[Path, typer.Argument(exists=True, help="Of --out of bench.routing.")]) -> None:
    """Print the tables of a kept run."""
    print_rows(read_kept(file, Row), Console())


if __name__ == "__main__":
    typer.run(main)
