"""``python -m tests.fuzz``: a graph, drawn requests through HTTP, damaged messages at every port; then a summary."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzz.findings import Findings
from tests.fuzz.graph_under_fuzz import GRAPHS, fuzzed_graph
from tests.fuzz.http_campaign import HttpCampaign
from tests.fuzz.port_campaign import PortCampaign
from tests.fuzz.target import Target
from tests.support.ascii_model import make_ascii_model


def main(
    requests: Annotated[int, typer.Option(help="How many requests through HTTP.")] = 5_000,
    messages: Annotated[int, typer.Option(help="How many damaged messages over all ports.")] = 100_000,
    seed: Annotated[
        int | None, typer.Option(help="What both are drawn from; a new one if not given.")
    ] = None,
    graph: Annotated[str, typer.Option(help=f"One of {', '.join(GRAPHS)}.")] = "disagg_wavepp",
) -> None:
    """Try to break a running graph with what clients and neighbours can send."""
    console, findings = Console(), Findings()
    seed = secrets.randbits(32) if seed is None else seed
    console.print(f"seed {seed}, graph {graph}")
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with (
            fuzzed_graph(graph, make_ascii_model(scratch / "model")) as served,
            Progress(*columns, console=console) as progress,
        ):
            target = Target(served)
            http, ports = HttpCampaign(target, findings), PortCampaign(target, findings)
            sending = progress.add_task("requests", total=requests)
            http.run(requests, seed, lambda more: progress.advance(sending, more))
            sending = progress.add_task("messages", total=messages)
            ports.run(messages, seed, lambda more: progress.advance(sending, more))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    console.print(_table("requests by outcome", http.outcomes), _table("messages by port", ports.messages))
    console.print(f"longest answer {http.slowest:.1f} s; seed {seed}; findings: {len(findings)}")
    if len(findings):
        console.print(str(findings), markup=False)
        raise typer.Exit(1)


def _table(title: str, counts: Counter[str]) -> Table:
    table = Table("", "", title=title, show_header=False)
    for name, count in counts.most_common():
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    typer.run(main)
