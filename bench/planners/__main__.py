"""Planners compared on a virtual pipeline (``bench.planners.pipeline``), on the paper's cells.

``python -m bench.planners [--only TEXT] [--planner NAME …]`` prints throughput as a share of the bound, p50 and p95
of every planner in every cell. Virtual time, without host work or a cache: ``bench.paper`` has both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from wavepp_worker.model.cost_model import read_timed_model
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu

from bench.paper.cells import CELLS, Cell
from bench.paper.cost_models import MODELS, SYSTEMS, M, cell_bound, stage_cost
from bench.paper.traffic import enough_requests
from bench.planners.pipeline import Device, Outcome, simulate

B, B_MIN = 64, M // 2

PLANNERS: dict[str, Callable[[Device], Planner]] = {
    "greedy": lambda d: GreedyPlanner(M),
    "greedy M/2": lambda d: GreedyPlanner(M // 2),
    "throttle": lambda d: ThrottlePlanner(
        waves=2 * d.stages, max_num_batched_tokens=M, min_num_batched_tokens=M // 16, block_size=B
    ),
    "two-budget": lambda d: TwoBudgetMpu(stages=d.stages, max_num_batched_tokens=M, block_size=B),
    "mpu-paper": lambda d: PaperMpu(P=d.stages, M=M, b_min=B_MIN, B=B),
    "mpu": lambda d: Mpu(
        stages=d.stages, max_num_batched_tokens=M, min_num_batched_tokens=M // 32, block_size=B, cost=d.cost
    ),
}


def device(model: str) -> Device:
    """The pipeline of one of the paper's systems."""
    timed, stages = read_timed_model(MODELS / model), SYSTEMS[model].stages
    return Device(stages, stage_cost(timed, stages), hop=sum(timed.hop_times(M // 2)))


def run_cell(cell: Cell, names: Sequence[str]) -> dict[str, Outcome]:
    """Every planner's outcome on the same requests."""
    where = device(cell.model)
    requests = list(islice(cycle(cell.shapes), enough_requests(cell, where.stages)))
    return {name: simulate(where, PLANNERS[name](where), requests, cell.concurrency) for name in names}


def main(
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
    planner: Annotated[list[str] | None, typer.Option(help="Planners to compare; default: all.")] = None,
) -> None:
    """Compare the planners on a virtual pipeline."""
    names = planner or list(PLANNERS)
    table = Table("cell", "bound tok/s", *names, title="tok/s of the bound, p50/p95 s")
    for cell in track([cell for cell in CELLS if only in cell.name], description="cells"):
        best, outcomes = cell_bound(cell), run_cell(cell, names)
        columns = [f"{o.throughput / best:6.1%} {o.p50:.1f}/{o.p95:.1f}" for o in outcomes.values()]
        table.add_row(cell.name, f"{best:,.0f}", *columns)
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
