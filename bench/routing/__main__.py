"""What cache-aware routing brings over round-robin, on whole graphs of several replicas.

``python -m bench.routing [--trace FILE] [--Service.key=value …]`` starts the default graph for every number of replicas
and every way to choose among them: Dynamo's frontend and router, its event plane, workers and their ranks are the real
processes, and the ranks' devices are virtual ones, so that two cores can be the host of several replicas. It prints
what was reused, times to first token and throughput, and how far the router's idea of what a request finds was off.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.common.kept import read_kept, with_origin, write_kept
from bench.common.origin import origin_now
from bench.common.served_graph import ServedGraph, serve
from bench.routing.measure import at_rest, load
from bench.routing.replica import serve_words, write_replica_model
from bench.routing.report import AT_REST, print_rows
from bench.routing.rows import Answer, Row
from bench.routing.traffic import Workload, probes, replayed, shared

MODES = ("kv", "round-robin")
SETTLE_SECONDS = 31.0
"""Longer than a prediction of the router lasts."""
PAUSE_SECONDS = 0.3
"""Between two requests to an idle graph; events of the last one have arrived by then."""

console = Console(stderr=True)


def measure(
    served: ServedGraph, workloads: list[Workload], rest: int, mode: str, options: str, replicas: int
) -> list[Row]:
    """A row of every workload, and one of ``rest`` requests to the idle graph."""

    def row(workload: str, seconds: float, busy: float, answers: list[Answer]) -> Row:
        return Row(
            workload=workload,
            mode=mode,
            options=options,
            replicas=replicas,
            seconds=seconds,
            busy=busy,
            answers=answers,
        )

    rows = []
    # The first answers of a frontend take longer.
    at_rest(served, probes(workloads[:1], 2 * replicas), 0.0, 0.0)
    for workload in workloads:
        console.print(f"{replicas} replicas, {mode}: {workload.name}, {len(workload.prompts)} requests")
        answers, seconds, busy = load(served, workload)
        rows.append(row(workload.name, seconds, busy, answers))
    if mode == "kv" and rest:
        answers = at_rest(served, probes(workloads, rest, seed=1), SETTLE_SECONDS, PAUSE_SECONDS)
        seconds = sum(each.seconds for each in answers)
        rows.append(row(AT_REST, seconds, 0.0, answers))
    return rows


def main(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A trace in Mooncake's format, too.")
    ] = None,
    replicas: Annotated[list[int] | None, typer.Option(help="Default: 2 and 4.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="Of the router; default: kv and round-robin.")
    ] = None,
    requests: Annotated[
        int, typer.Option(help="Of each workload, for each replica; of the trace, twice as many.")
    ] = 100,
    prefixes: Annotated[
        list[int] | None, typer.Option(help="Shared by the requests of a workload; default: 0, 8 and 48.")
    ] = None,
    load_percent: Annotated[float, typer.Option(help="Of the replicas' time, for the trace.")] = 60.0,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 65_536,
    rest: Annotated[int, typer.Option(help="Requests, one at a time, to the idle graph.")] = 60,
    out: Annotated[Path | None, typer.Option(help="Keep every answer in this JSON file.")] = None,
) -> None:
    """Print reuse, times and throughput of every router, and the errors of the router's idea."""
    rows = read_kept(out, Row) if out else []
    with tempfile.TemporaryDirectory() as directory:
        model = write_replica_model(Path(directory))
        for count in replicas or (2, 4):
            workloads = [shared(each, requests * count, count) for each in (prefixes or (0, 8, 48))]
            if trace is not None:
                workloads.append(replayed(trace, 2 * requests * count, count, load_percent / 100))
            for each in mode or MODES:
                origin = origin_now()
                words = (*serve_words(model, each, count, kv_tokens), *context.args)
                with serve("graphs:disagg_wavepp", *words) as served:
                    measured = measure(served, workloads, rest, each, " ".join(context.args), count)
                rows += [with_origin(row, origin) for row in measured]
                if out is not None:
                    write_kept(out, rows)
    print_rows(rows, Console())


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
