"""``python -m tests.simulator --seeds 1000000``: simulate that many schedules; stops at the first that fails."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.simulator.search import STRIDE, first_failure
from tests.simulator.world import World


def main(
    seeds: Annotated[int, typer.Option(help="How many schedules.")] = 10_000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Run this one alone and print what happened.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks; drawn from the seed if not given.")] = None,
    admission: Annotated[str, typer.Option(help="wave or lockstep.")] = "wave",
    ownership: Annotated[str, typer.Option(help="lease, or none as lockstep needs.")] = "lease",
) -> None:
    """Look for a schedule that breaks a promise."""
    if seed is not None:
        world = World(seed, ranks=ranks, admission=admission, ownership=ownership)
        try:
            typer.echo(f"{world.run()} events, all well")
        finally:
            for event in world.trace:
                typer.echo(" ".join(str(part) for part in event))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("seeds", total=seeds)
        stretches = enumerate(first_failure(first, seeds, ranks, admission, ownership), start=1)
        for stretch, result in stretches:
            if result is not None:
                again = f"--admission {admission} --ownership {ownership}"
                again += f" --ranks {ranks}" if ranks else ""
                typer.echo(f"seed {result[0]}: {result[1]}", err=True)
                typer.echo(f"again: python -m tests.simulator --seed {result[0]} {again}", err=True)
                raise typer.Exit(1)
            progress.update(task, completed=min(stretch * STRIDE, seeds))


if __name__ == "__main__":
    typer.run(main)
