"""Planners compared on agents: ``python -m bench.planners.agents``, on a virtual pipeline without host work.

Each agent asks its next turn after its last answer; all have one system prompt, which is cached. Of how many agents
there are, of how many turns of which lengths, whether some leave early and whether some think for a while before they
ask, a seed draws many loads for each system and number of stages. Admission takes up to 3 ms more for some than for
others, so that those who are answered together do not come back at one moment.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from bench.common.cells import Shape
from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.systems import BLOCK, SYSTEMS
from bench.common.tables import plain_table, print_table
from bench.planners.__main__ import PLANNERS, device
from bench.planners.pipeline import PlannerRun, simulate

COMPARED = ("greedy", "throttle", "mpu-paper", "mpu")
LONGEST_TURN = 30_000
MOST_JITTER_SECONDS = 0.003
"""By which agents that are answered together come back apart."""


@dataclass(frozen=True)
class AgentLoad:
    """What ``simulate`` takes: all turns of all agents, and which of them follows which after how many seconds."""

    requests: tuple[Shape, ...]
    turns: dict[int, tuple[int, float]]


def draw_load(draw: random.Random) -> AgentLoad:
    """A load of 4 to 48 agents."""
    agents, turns = draw.randint(4, 48), draw.randint(6, 16)
    system, median = draw.choice((0, 2048, 8192, 16384)), draw.choice((256, 512, 1024, 2048, 4096))
    sigma, leaves = draw.choice((0.0, 0.3, 0.7, 1.2)), draw.random() < 0.3
    thinks, seconds = draw.choice((0.0, 0.0, 0.0, 0.1, 1.0)), draw.choice((0.1, 0.5))
    requests: list[Shape] = []
    follows: dict[int, tuple[int, float]] = {}
    for _ in range(agents):
        tokens = system
        for turn in range(draw.randint(2, 2 * turns) if leaves else turns):
            cached = tokens // BLOCK * BLOCK
            tokens += min(LONGEST_TURN, max(1, int(draw.lognormvariate(math.log(median), sigma))))
            if turn:
                think = draw.expovariate(1 / seconds) if draw.random() < thinks else 0.0
                follows[len(requests) - 1] = len(requests), think + MOST_JITTER_SECONDS * draw.random()
            requests.append(Shape(tokens, cached))
    return AgentLoad(tuple(requests), follows)


def run_load(load: AgentLoad, model: str, stages: int, names: Sequence[str]) -> list[PlannerRun]:
    """Every planner's outcome on the same load."""
    where = device(model, stages)
    return [simulate(where, PLANNERS[name](where), load.requests, turns=load.turns) for name in names]


def main(
    loads: Annotated[int, typer.Option(help="Loads for each system and number of stages.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the loads.")] = 1,
    stages: Annotated[list[int] | None, typer.Option(help="Pipeline stages; default: 1, 2, 4, 8.")] = None,
    planner: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PLANNERS)}.")] = None,
) -> None:
    """Compare the planners on agents, by geometric means over the loads."""
    names, counts = planner or list(COMPARED), stages or [1, 2, 4, 8]
    require_known(names, PLANNERS)
    table = plain_table(
        f"last answer / p50 / p95, s: geometric means of {loads} loads",
        f"measured at {origin_now()}",
        texts=["system", "stages"],
        numbers=names,
    )
    cells = [(model, count) for model in SYSTEMS for count in counts]
    for model, count in track(cells, description="agents", console=Console(stderr=True)):
        draw = random.Random(f"{seed} {model} {count}")
        runs = [run_load(draw_load(draw), model, count, names) for _ in range(loads)]
        columns = [_means([each[at] for each in runs]) for at in range(len(names))]
        table.add_row(model, f"{count}", *columns)
    print_table(Console(width=60 + 24 * len(names)), table)


def _means(runs: Sequence[PlannerRun]) -> str:
    measures: tuple[Callable[[PlannerRun], float], ...] = (
        lambda run: run.seconds,
        lambda run: run.p50,
        lambda run: run.p95,
    )
    return " / ".join(f"{statistics.geometric_mean(map(measure, runs)):.3f}" for measure in measures)


if __name__ == "__main__":
    typer.run(main)
