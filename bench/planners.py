"""Planners compared on a virtual pipeline (``bench.pipeline``), on the shapes of the paper's tables.

``python -m bench.planners [--only TEXT] [--planner NAME …] [--requests-per-client N]`` prints throughput, its
share of the bound, p50 and p95 of every planner in every cell. Virtual time: the host's share is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from wavepp_worker.runtime.chunk_cost import ChunkCost
from wavepp_worker.runtime.mpu import PaperMpu, TwoBudgetMpu
from wavepp_worker.runtime.planner import GreedyPlanner, Planner
from wavepp_worker.runtime.throttle import ThrottlePlanner
from wavepp_worker.runtime.timed_mpu import TimedMpu

from bench.pipeline import Device, Outcome, Shape, bound, mixed, simulate

K = 1024
M, B_MIN, B = 16 * K, 8 * K, 64

# Seconds per token and per token of context, so that full stages give the paper's cold rows at c=32.
DEVICES = {
    "glm-pp4": Device(4, ChunkCost(0.008, 18.6e-6, 3.4e-11)),
    "minimax-pp4": Device(4, ChunkCost(0.008, 5.6e-6, 1.97e-10)),
    "kimi-pp8": Device(8, ChunkCost(0.008, 18.0e-6, 1.35e-10)),
}

PLANNERS: dict[str, Callable[[Device], Planner]] = {
    "greedy": lambda d: GreedyPlanner(M),
    "greedy M/2": lambda d: GreedyPlanner(M // 2),
    "throttle": lambda d: ThrottlePlanner(T=2 * d.stages, max_p=M, min_p=M // 16, B=B),
    "mpu-k3": lambda d: TwoBudgetMpu(P=d.stages, M=M, B=B),
    "mpu-paper": lambda d: PaperMpu(P=d.stages, M=M, b_min=B_MIN, B=B),
    "mpu": lambda d: TimedMpu(P=d.stages, M=M, b_min=M // 32, B=B, cost=d.cost),
}


@dataclass(frozen=True)
class Cell:
    """One row of a table: a device, a shape of traffic, a concurrency."""

    device: str
    traffic: str
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.device} {self.traffic} c={self.concurrency}"

    def requests(self, per_client: int) -> list[Shape]:
        """At least 48 requests, so that percentiles mean something."""
        count = max(48, per_client * self.concurrency)
        if self.traffic == "mixed":
            return mixed(count, Shape(128 * K, 128 * K * 9 // 10 // B * B), Shape(256 * K))
        return [SHAPES[self.traffic]] * count


SHAPES = {
    "cold 64K": Shape(64 * K),
    "cold 128K": Shape(128 * K),
    "cold 256K": Shape(256 * K),
    "reuse 128K": Shape(128 * K, 128 * K * 9 // 10 // B * B),
    "reuse 256K": Shape(256 * K, 256 * K * 9 // 10 // B * B),
    "4K suffix": Shape(129 * K, 125 * K),
}
CELLS = [
    Cell(device, traffic, c)
    for device in DEVICES
    for traffic in [*SHAPES, "mixed"]
    for c in ((1, 4, 8, 16, 32, 64, 128) if traffic == "4K suffix" else (1, 4, 8, 16, 32))
]


def run_cell(cell: Cell, names: Sequence[str], per_client: int) -> tuple[float, dict[str, Outcome]]:
    """The cell's bound (tokens/s) and every planner's outcome on the same requests."""
    device, requests = DEVICES[cell.device], cell.requests(per_client)
    outcomes = {name: simulate(device, PLANNERS[name](device), requests, cell.concurrency) for name in names}
    return bound(device, requests, cell.concurrency), outcomes


def main(
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
    planner: Annotated[list[str] | None, typer.Option(help="Planners to compare; default: all.")] = None,
    requests_per_client: int = 12,
) -> None:
    """Compare the planners on a virtual pipeline."""
    names = planner or list(PLANNERS)
    table = Table("cell", "bound tok/s", *names, title="tok/s of the bound, p50/p95 s")
    for cell in track([cell for cell in CELLS if only in cell.name], description="cells"):
        best, outcomes = run_cell(cell, names, requests_per_client)
        columns = [f"{o.throughput / best:6.1%} {o.p50:.1f}/{o.p95:.1f}" for o in outcomes.values()]
        table.add_row(cell.name, f"{best:,.0f}", *columns)
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
