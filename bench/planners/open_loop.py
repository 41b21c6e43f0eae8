"""Planners compared on traces: ``python -m bench.planners.open_loop [TRACE]``, on a virtual pipeline without host work.

Requests come when the trace says, as fast as keeps the stages busy for each ``--load`` per cent of the time. All that a
cache which never evicts could reuse is reused. Each planner's p50 and p95 of the time to first token stand beside those
of the planner that does best in each. This takes a minute where ``bench.trace`` takes hours: it leaves out admission,
host code and evictions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from bench.common.cells import Shape
from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.systems import SYSTEMS, WAVE_TOKENS
from bench.common.tables import plain_table, print_table
from bench.planners.__main__ import PLANNERS, device
from bench.planners.pipeline import PlannerRun, simulate
from bench.trace.file import TraceRequest, cached_tokens, rate_for_load, read_trace
from bench.trace.generate import KINDS, generate

LOADS = (30.0, 50.0, 75.0, 90.0, 110.0)
COMPARED = ("greedy", "throttle", "two-budget", "mpu-paper", "mpu")


def run_trace(asked: list[TraceRequest], model: str, load: float, names: list[str]) -> dict[str, PlannerRun]:
    """Every planner's outcome on the same requests."""
    where = device(model)
    rate = rate_for_load(asked, load / 100, where.cost, WAVE_TOKENS)
    times = [(each.timestamp - asked[0].timestamp) / 1000 / rate for each in asked]
    # The last token is computed, whatever is cached.
    shapes = [
        Shape(each.input_length, min(cached, each.input_length - 1))
        for each, cached in zip(asked, cached_tokens(asked), strict=True)
    ]
    return {name: simulate(where, PLANNERS[name](where), shapes, times=times) for name in names}


def main(
    trace: Annotated[
        Path | None, typer.Argument(exists=True, dir_okay=False, help="A trace, JSON lines.")
    ] = None,
    generated: Annotated[
        list[str] | None,
        typer.Option("--generate", help=f"Of {', '.join(KINDS)}; default: all, without a trace."),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SYSTEMS)}; default: all.")] = None,
    load: Annotated[
        list[float] | None, typer.Option(help="Per cent of the time that stages are busy.")
    ] = None,
    planner: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PLANNERS)}.")] = None,
    requests: Annotated[int, typer.Option(help="The first this many.")] = 500,
    seed: Annotated[int, typer.Option(help="Of generated traces.")] = 1,
) -> None:
    """Compare the planners on traces at several loads."""
    models, loads, names = model or list(SYSTEMS), load or list(LOADS), planner or list(COMPARED)
    kinds = generated or ([] if trace else list(KINDS))
    require_known(models, SYSTEMS)
    require_known(names, PLANNERS)
    require_known(kinds, KINDS)
    traces = {kind: generate(kind, requests, seed) for kind in kinds}
    if trace is not None:
        traces[trace.name] = read_trace(trace, requests)
    table = plain_table(
        "time to first token: p50/p95 s (of the best)",
        f"measured at {origin_now()}",
        texts=["system", "trace", "load"],
        numbers=names,
    )
    cells = [(system, kind, each) for system in models for kind in traces for each in loads]
    for system, kind, each in track(cells, description="traces", console=Console(stderr=True)):
        runs = run_trace(traces[kind], system, each, names)
        p50, p95 = (min(getattr(run, share) for run in runs.values()) for share in ("p50", "p95"))
        columns = [
            f"{run.p50:.2f}/{run.p95:.2f} ({run.p50 / p50:.2f}, {run.p95 / p95:.2f})" for run in runs.values()
        ]
        table.add_row(system, kind, f"{each:.0f} %", *columns)
    print_table(Console(width=60 + 32 * len(names)), table)


if __name__ == "__main__":
    typer.run(main)
