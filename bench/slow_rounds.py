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

from bench.common.cells import cell_named
from bench.common.origin import origin_now
from bench.common.policies import POLICIES, RUNGS, require_known
from bench.common.tables import plain_table, print_table
from bench.paper.boots import virtual_boot

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
    try:
        chosen = cell_named(cell)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    policies, origin = policy or list(RUNGS.values()), origin_now()
    require_known(policies, POLICIES)
    delays = delay or list(DELAYS)
    table = plain_table(
        f"{cell}: share of the bound",
        f"{requests} requests; {origin}",
        numbers=["ms added to a round", *policies],
    )
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
