"""The graphs that run on this machine, as commands find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from wavepp_worker.serve.run_state import read_state, run_dirs, says_enough
from wavepp_worker.standard_output import printable


def all_runs(run_dir: Path | None) -> list[tuple[Path, dict[str, Any]]]:
    """The run of a directory, or all runs of this user, each with what its launcher says, of whatever version.

    Raises:
        typer.Exit: none runs; that was said.
    """
    directories = [run_dir.absolute()] if run_dir is not None else run_dirs()
    found = [(each, state) for each in directories if (state := read_state(each)) is not None]
    if not found:
        where = (
            f"no graph runs in {printable(str(run_dir))}"
            if run_dir is not None
            else "no graph of this user runs here"
        )
        typer.secho(f"{where}; start one with dynamo serve", fg="red", err=True)
        raise typer.Exit(1)
    return found


def found_runs(run_dir: Path | None) -> list[tuple[Path, dict[str, Any]]]:
    """The same, without those of other versions, of which that is said.

    Raises:
        typer.Exit: none is left.
    """
    found = []
    for directory, state in all_runs(run_dir):
        if says_enough(state):
            found.append((directory, state))
        else:
            sentence = f"{printable(str(directory))} is of another version of this program, and is left out"
            typer.secho(f"{sentence}; use the wavepp of that version", fg="yellow", err=True)
    if not found:
        raise typer.Exit(1)
    return found


def only_run(run_dir: Path | None) -> dict[str, Any]:
    """What the launcher of a directory's run says, or of the only run of this user.

    Raises:
        typer.Exit: none runs; that was said.
        typer.BadParameter: several do, and none is named.
    """
    (_, state), *others = runs = found_runs(run_dir)
    if others:
        told = ", ".join(f"{printable(str(directory))} ({each.get('graph')})" for directory, each in runs)
        raise typer.BadParameter(f"{len(runs)} graphs of this user run; say which with --run-dir: {told}")
    return state
