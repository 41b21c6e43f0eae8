"""What admission costs when its rounds are slow: ``python -m bench.slow_rounds``.

The paper's baseline walks the prefix tree twice while the executors stand still, 64 ms a look-up. Here a look-up takes
microseconds and a round a millisecond, so lockstep admission loses little. This command adds a delay to every round,
between voting and counting, and shows what is left of each policy's throughput: on virtual devices and the virtual
clock of ``bench.paper``.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.paper.cells import CELLS
from bench.paper.run import POLICIES, require_known, virtual_boot
from bench.paper.tables import print_table

DELAYS = (0.0, 0.005, 0.02, 0.064)


def main(
    cell: Annotated[str, typer.Option(help="Name of a cell of bench.paper.")] = "glm-5.2-pp4 4K suffix c=32",
    delay: Annotated[list[float] | None, typer.Option(help="Seconds added to every round.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: the ablation's.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests of each measurement.")] = 300,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 6_000_000,
) -> None:
    """Print each policy's throughput per delay, as a share of the cell's bound."""
    chosen = next((each for each in CELLS if each.name == cell), None)
    if chosen is None:
        raise typer.BadParameter(f"{cell!r} is not a cell; one is {CELLS[0].name!r}, bench.paper prints all")
    policies = policy or ["lockstep", "wave", "lease", "mpu"]
    require_known(policies, POLICIES)
    delays = delay or list(DELAYS)
    table = Table("ms added to a round", *policies, title=f"{cell}: share of the bound")
    for column in table.columns:
        column.justify = "right"
    shares: dict[tuple[float, str], float] = {}
    todo = [(seconds, name) for seconds in delays for name in policies]
    for seconds, name in track(todo, description="measuring", console=Console(stderr=True)):
        (row,) = virtual_boot(chosen.model, name, [chosen], kv_tokens, seconds, requests)
        shares[seconds, name] = row.throughput / row.bound
    for seconds in delays:
        table.add_row(f"{1000 * seconds:g}", *(f"{shares[seconds, name]:.1%}" for name in policies))
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
