"""Tables of a kept run of ``bench.paper`` beside the paper's: ``python -m bench.paper.report FILE.json``.

Everything is computed from the kept cells; any subset of cells and policies will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.common.kept import origins, read_kept
from bench.common.tables import print_table
from bench.paper.rows import CellRow
from bench.paper.rungs import ablation_cells
from bench.paper.tables import (
    ablation_table,
    bubbles_table,
    completion_table,
    computed_table,
    stage_table,
    throughput_table,
)
from bench.paper.verdict import Finding, not_run, verdict
from bench.paper.views import TITLES, Results, find_cell


def print_report(rows: Sequence[CellRow], console: Console, cell: str = "") -> None:
    """Print every table that has rows, and the verdict last.

    Args:
        cell: the name, or a part of it, of a cell whose stages are shown one by one.

    Raises:
        ValueError: ``cell`` names no measured cell, or several.
    """
    results = Results(rows)
    chosen = find_cell(cell, results.cells) if cell else None
    tables = list(_tables(results))
    if chosen is not None:
        tables.append(stage_table(results, chosen))
    for table in tables:
        print_table(console, table)
    print_verdict(results, console)


def _tables(results: Results) -> Iterator[Table]:
    for model in TITLES:
        if results.of_model(model):
            yield throughput_table(results, model)
            yield completion_table(results, model)
            if any(not cell.cold for cell in results.of_model(model)):
                yield computed_table(results, model)
            if any(row.idle for row in results.rows if row.model == model):
                yield bubbles_table(results, model)
    if ablation_cells(results):
        yield ablation_table(results)


def print_verdict(results: Results, console: Console) -> None:
    """Which promises the rows keep, cell by cell where they do not, and what was not run."""
    clocks = sorted({f"{row.clock} clock, speed {row.speed:g}" for row in results.rows})
    head = f"Verdict on {len(results.rows)} measurements of {len(results.cells)} cells ({'; '.join(clocks) or 'none'})"
    lines = [Text(head, style="bold"), Text(f"  measured  {origins(results.rows)}")]
    for finding in verdict(results):
        lines.extend(_verdict_lines(finding))
    if missing := not_run(results):
        lines.append(Text("Not run:", style="bold"))
        lines.extend(Text(f"    {line}") for line in missing)
    if results.unknown:
        lines.append(Text(f"{results.unknown} measurements are of no cell of the paper."))
    for line in lines:
        console.print(line, soft_wrap=True)


def _verdict_lines(finding: Finding) -> Iterator[Text]:
    note = f"; {finding.unchecked}" if finding.unchecked else ""
    if not finding.checked:
        yield Text(f"  not run   {finding.promise}{note}", style="yellow")
        return
    held = finding.checked - finding.missed
    style, word = ("red", "MISSED") if finding.misses else ("green", "kept")
    yield Text(f"  {word:<9} {finding.promise}: {held} of {finding.checked}{note}", style=style)
    for name, figures in finding.misses:
        yield Text(f"              {name}: {figures}")


def main(
    file: Annotated[Path, typer.Argument(help="What bench.paper --out kept.", exists=True, dir_okay=False)],
    figures: Annotated[Path | None, typer.Option(help="Write PNG figures into this directory.")] = None,
    cell: Annotated[str, typer.Option(help="Show every stage of the cell with this name.")] = "",
) -> None:
    """Print the tables and the verdict of a kept run."""
    rows = read_kept(file, CellRow)
    try:
        print_report(rows, Console(), cell)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if figures is not None:
        # Tables do without matplotlib.
        from bench.paper.figures import write_figures

        for written in write_figures(rows, figures):
            typer.echo(written)


if __name__ == "__main__":
    typer.run(main)
