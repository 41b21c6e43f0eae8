"""``python -m tests.simulator --seeds 1000000``: simulate that many schedules; stops at the first that fails."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.simulator.world import World

STRIDE = 100


def failure(job: tuple[int, int, int | None, str, str]) -> tuple[int, str] | None:
    """The first seed of a stretch that breaks a promise, and how."""
    first, count, ranks, admission, ownership = job
    for seed in range(first, first + count):
        try:
            World(seed, ranks=ranks, admission=admission, ownership=ownership).run()
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


def first_failure(
    first: int, seeds: int, ranks: int | None, admission: str, ownership: str, processes: int = 2
) -> Iterator[tuple[int, str] | None]:
    """One result per ``STRIDE`` seeds, in order."""
    jobs = (
        (at, min(STRIDE, first + seeds - at), ranks, admission, ownership)
        for at in range(first, first + seeds, STRIDE)
    )
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(failure, jobs)


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
            typer.echo("\n".join(world.trace))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("seeds", total=seeds)
        for result in first_failure(first, seeds, ranks, admission, ownership):
            if result is not None:
                again = f"--admission {admission} --ownership {ownership}"
                again += f" --ranks {ranks}" if ranks else ""
                typer.echo(f"seed {result[0]}: {result[1]}", err=True)
                typer.echo(f"again: python -m tests.simulator --seed {result[0]} {again}", err=True)
                raise typer.Exit(1)
            progress.advance(task, STRIDE)


if __name__ == "__main__":
    typer.run(main)
