"""``wavepp top``: what the graphs that run here do, live."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape

from wavepp_worker.serve.health import metrics
from wavepp_worker.serve.run_state import read_state, says_enough
from wavepp_worker.serve.runs import found_runs
from wavepp_worker.serve.top_view import (
    SHARE_SECONDS,
    History,
    Worker,
    decode_table,
    prefill_table,
    read_frame,
)
from wavepp_worker.standard_output import printing

REFRESH_SECONDS = 0.5
WIDTH = 160
"""Columns where standard output is no terminal."""


class Watch:
    """Some runs, and what their workers said lately."""

    def __init__(self, run_dirs: list[Path]) -> None:
        self._run_dirs = run_dirs
        self._histories: dict[str, History] = {}

    async def look(self) -> RenderableType | None:
        """Ask all workers, and show what they do; None if no run is left."""
        told = map(read_state, self._run_dirs)
        states = [state for state in told if state is not None and says_enough(state)]
        if not states:
            return None
        processes = [each for state in states for each in state["processes"] if _answers(each)]
        urls = [each["url"] for each in processes]
        texts = await asyncio.gather(*map(metrics, urls))
        now = time.monotonic()
        for url, text in zip(urls, texts, strict=True):
            self._take(url, now, text)
        return Group(*(part for state in states for part in self._parts(state)))

    def _take(self, url: str, now: float, text: str) -> None:
        try:
            frame = read_frame(now, text)
        except ValueError:
            frame = None
        if frame is None or not frame.values:
            # It is gone, or not ready: what comes next is of another life.
            self._histories[url] = History()
        else:
            self._histories.setdefault(url, History()).add(frame)

    def _parts(self, state: dict[str, Any]) -> list[RenderableType]:
        workers: dict[str, list[Worker]] = {"prefill": [], "decode": []}
        for process in filter(_answers, state["processes"]):
            # Names are no markup.
            name = escape(f"{process['service']}:{process['replica']}")
            worker = Worker(name, self._histories.get(process["url"], History()))
            for role in roles(process):
                workers[role].append(worker)
        title = escape(f"{state['graph']}: {state.get('model') or 'no model yet'} (launcher {state['pid']})")
        parts: list[RenderableType] = [prefill_table(title, workers["prefill"])]
        return [*parts, decode_table(workers["decode"]), ""] if workers["decode"] else [*parts, ""]


def roles(process: dict[str, Any]) -> list[str]:
    """What a worker does: ``prefill``, ``decode`` or both; the first before it has said so."""
    about = process.get("about")
    engines = about.get("engines", ()) if isinstance(about, dict) else ()
    said = [role for role in ("prefill", "decode") if any(each.get("role") == role for each in engines)]
    return said or ["prefill"]


def _answers(process: dict[str, Any]) -> bool:
    return bool(process["url"]) and process["kind"] == "worker"


async def _frames(watch: Watch, console: Console, once: bool) -> bool:
    """Show frames until the runs are gone, or one; returns whether they are there."""
    if once:
        await watch.look()
        # Shares and rates need two looks, heartbeats apart.
        await asyncio.sleep(SHARE_SECONDS)
        shown = await watch.look()
        if shown is not None:
            with printing():
                console.print(shown)
        return shown is not None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while (shown := await watch.look()) is not None:
            live.update(shown, refresh=True)
            await asyncio.sleep(REFRESH_SECONDS)
    return False


def top(
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of a run; by default all runs of this user.", show_default=False),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and end, as where no terminal is.")
    ] = False,
) -> None:
    """Show live what every rank and worker of the running graphs does; Ctrl-C ends it.

    Leaves with 1 if no graph runs, or not any more.
    """
    runs = found_runs(run_dir)
    console = Console()
    if not console.is_terminal:
        once, console = True, Console(width=WIDTH)
    try:
        there = asyncio.run(_frames(Watch([directory for directory, _ in runs]), console, once))
    except KeyboardInterrupt:
        return
    if not there:
        names = ", ".join(sorted(str(state.get("graph")) for _, state in runs))
        typer.secho(f"{names} is gone: the launcher has ended", fg="red", err=True)
        raise typer.Exit(1)
