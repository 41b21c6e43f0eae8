"""``wavepp status``: the graphs that run on this machine, as their launchers say, and what their workers do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from wavepp_worker.serve.banner import banner
from wavepp_worker.serve.health import metrics
from wavepp_worker.serve.run_state import says_enough
from wavepp_worker.serve.runs import all_runs
from wavepp_worker.serve.worker_load import load_lines
from wavepp_worker.standard_output import printable, printing


async def loads_of(state: dict[str, Any]) -> dict[str, list[str]]:
    """What each worker of a run does, by its URL; nothing of one that does not say."""
    if not says_enough(state):
        return {}
    urls = [each["url"] for each in state["processes"] if each["url"] and each["kind"] == "worker"]
    found = {}
    for url, text in zip(urls, await asyncio.gather(*map(metrics, urls)), strict=True):
        if not text:
            continue
        try:
            found[url] = load_lines(text)
        except ValueError:
            continue
    return found


def describe_run(run_dir: Path, state: dict[str, Any], loads: dict[str, list[str]]) -> list[str]:
    """A run's first line and its banner, with what its workers do.

    That it is there, and no more, if its launcher is of another version; that it is gone, if nobody answers either.
    """
    where = printable(str(run_dir))
    try:
        lines = banner(state, loads) if says_enough(state) else None
    except msgspec.ValidationError:
        lines = None
    if lines is None:
        return [f"{state.get('graph')}, of another version of this program  ({where})"]
    if not loads and not _lives(state["pid"]):
        return [
            f"{state['graph']} does not run: its launcher {state['pid']} is gone, and no worker answers; end what is "
            f"left of it, and remove {where}"
        ]
    served = f": {state['model']} at {state['base_url']}" if state["model"] and state["base_url"] else ""
    ready = "ready" if state["ready"] and all(each["ready"] for each in state["processes"]) else "not ready"
    services = {each["service"] for each in state["processes"]}
    # A launcher of one service is one of several with this graph.
    of = f" ({services.pop()})" if len(services) == 1 else ""
    first = f"{state['graph']}{of} {ready}{served}  (launcher {state['pid']}, {where})"
    return [first, *(f"  {line}" for line in lines)]


def status(
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of a run; by default all runs of this user.", show_default=False),
    ] = None,
) -> None:
    """Print what every running graph of `dynamo serve` consists of, what it does, and where to look at it."""
    runs = all_runs(run_dir)
    for (each, state), loads in zip(runs, asyncio.run(_loads([state for _, state in runs])), strict=True):
        with printing():
            typer.echo("\n".join(describe_run(each, state, loads)))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


async def _loads(states: list[dict[str, Any]]) -> list[dict[str, list[str]]]:
    """As ``loads_of``, of all runs at once: who does not answer costs its time but once."""
    return await asyncio.gather(*map(loads_of, states))
