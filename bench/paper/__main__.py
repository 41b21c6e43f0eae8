"""The paper's tables (section 5) on virtual devices: ``python -m bench.paper``.

Every model and policy is one boot, and sends each cell's traffic from ``c`` clients, each of which sends its next
prompt when the last one is answered. Cold cells come first in a boot; a boot that begins with another cell is first
filled with cold traffic. Prefixes are sent before the clock starts. Devices take the time of their cost model
(``bench.paper.cost_models``).

``--clock virtual`` runs a replica in one process on a virtual clock (``bench.virtual.replica``), several boots side by
side. A cell gets enough requests for filling and draining to be 2 % of its time; its p95 may still depend on where the
first waves ended, and ``--times 4`` shows whether it does. ``--clock real`` runs one process a rank against real time,
with devices ``--speed`` times faster, which makes the host's share that much larger than it would be.

``--out`` keeps every finished cell, and a run that finds it there does not repeat it. Tables and figures of a kept
file: ``python -m bench.paper.report``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.common.cells import CELLS, Cell, enough_requests
from bench.common.kept import read_kept, with_origin, write_kept
from bench.common.origin import origin_now
from bench.common.policies import POLICIES, require_known
from bench.common.systems import SYSTEMS
from bench.paper.boots import real_boot
from bench.paper.pool import missing, side_by_side
from bench.paper.report import print_report
from bench.paper.rows import CellRow, cell_key


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(SYSTEMS)}; default: all.")
    ] = None,
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: all.")
    ] = None,
    clock: Annotated[Literal["virtual", "real"], typer.Option(help="See above.")] = "virtual",
    processes: Annotated[int, typer.Option(help="Boots side by side on the virtual clock.")] = 2,
    speed: Annotated[
        float, typer.Option(help="How much faster than the paper's the devices are on the real clock.")
    ] = 4.0,
    times: Annotated[
        int, typer.Option(min=1, help="How many times more requests on the virtual clock than are enough.")
    ] = 1,
    requests_per_client: Annotated[int, typer.Option(help="Requests of a cell on the real clock.")] = 4,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 6_000_000,
    out: Annotated[Path, typer.Option(help="Measured cells, JSON.")] = Path("paper.json"),
    figures: Annotated[Path | None, typer.Option(help="Write PNG figures into this directory.")] = None,
) -> None:
    """Run the paper's cells on virtual devices and print them beside the paper's figures."""
    models, policies = model or list(SYSTEMS), policy or list(POLICIES)
    require_known(models, SYSTEMS)
    require_known(policies, POLICIES)
    rows, origin = read_kept(out, CellRow), origin_now()
    if clocks := {row.clock for row in rows} - {clock}:
        raise typer.BadParameter(
            f"{out} holds cells of the {clocks.pop()} clock; name another file with --out"
        )
    boots = missing(models, policies, only, rows)
    if clock == "virtual":
        measured = side_by_side(boots, kv_tokens, times, processes)
    else:
        measured = (row for boot in boots for row in real_boot(*boot, kv_tokens, speed, requests_per_client))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        total = sum(_weight(cell) for _, _, cells in boots for cell in cells)
        task = progress.add_task("booting", total=total)
        for row in measured:
            rows.append(with_origin(row, origin))
            write_kept(out, rows)
            done = next(cell for cell in CELLS if cell_key(row.policy, cell) == row.key)
            progress.update(task, advance=_weight(done), description=f"{done.name} {row.policy}")
    print_report(rows, Console())
    if figures is not None:
        # Tables do without matplotlib.
        from bench.paper.figures import write_figures

        for file in write_figures(rows, figures):
            typer.echo(file)


def _weight(cell: Cell) -> float:
    """The host's work for a cell, roughly: tokens that every rank hashes, finds and publishes."""
    stages = SYSTEMS[cell.model].stages
    return enough_requests(cell, stages) * cell.tokens / len(cell.shapes) * stages


if __name__ == "__main__":
    typer.run(main)
