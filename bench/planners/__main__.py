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
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu

from bench.common.bounds import cell_bound
from bench.common.cells import CELLS, Cell, enough_requests
from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.systems import BLOCK, SYSTEMS, WAVE_TOKENS, hop_seconds, read_system_model, stage_cost
from bench.common.tables import plain_table, print_table
from bench.planners.pipeline import PlannerRun, VirtualDevice, simulate

PLANNERS: dict[str, Callable[[VirtualDevice], Planner]] = {
    "greedy": lambda d: GreedyPlanner(WAVE_TOKENS),
    "greedy M/2": lambda d: GreedyPlanner(WAVE_TOKENS // 2),
    "throttle": lambda d: ThrottlePlanner(
        waves=2 * d.stages,
        max_num_batched_tokens=WAVE_TOKENS,
        min_num_batched_tokens=WAVE_TOKENS // 16,
        block_size=BLOCK,
    ),
    "two-budget": lambda d: TwoBudgetMpu(
        stages=d.stages, max_num_batched_tokens=WAVE_TOKENS, block_size=BLOCK
    ),
    "mpu-paper": lambda d: PaperMpu(P=d.stages, M=WAVE_TOKENS, b_min=WAVE_TOKENS // 2, B=BLOCK),
    "mpu": lambda d: Mpu(
        stages=d.stages,
        max_num_batched_tokens=WAVE_TOKENS,
        min_num_batched_tokens=WAVE_TOKENS // 32,
        block_size=BLOCK,
        cost=d.cost,
    ),
}


def device(model: str, stages: int | None = None) -> VirtualDevice:
    """The pipeline of one of the paper's systems, in as many stages as there unless ``stages`` says how many."""
    timed, stages = read_system_model(model), stages or SYSTEMS[model].stages
    return VirtualDevice(stages, stage_cost(timed, stages), hop=hop_seconds(timed))


def run_cell(cell: Cell, names: Sequence[str]) -> dict[str, PlannerRun]:
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
    require_known(names, PLANNERS)
    table = plain_table(
        "tok/s of the bound, p50/p95 s",
        f"measured at {origin_now()}",
        texts=["cell"],
        numbers=["bound tok/s", *names],
    )
    for cell in track(
        [cell for cell in CELLS if only in cell.name], description="cells", console=Console(stderr=True)
    ):
        best, outcomes = cell_bound(cell), run_cell(cell, names)
        columns = [f"{o.throughput / best:6.1%} {o.p50:.1f}/{o.p95:.1f}" for o in outcomes.values()]
        table.add_row(cell.name, f"{best:,.0f}", *columns)
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
