"""What finding and claiming reusable cache costs: two walks of the tree against the hint index and leases.

``python -m bench.admission`` measures, for long prompts that share most of their prefix and against a tree
that another thread keeps changing: first every step by itself on one rank, whose tree changes without a
pause; then hint discovery and rounds between real processes, whose trees change once per ``--pause``. The
paper's figures are from another machine and another language: they say what the mechanism is for.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from wavepp_worker.runtime.protocol.rounds import Plan

from bench.admission.cached_rank import CHURN_BLOCKS
from bench.admission.long_prompts import LongPrompts
from bench.admission.ranks import Ranks
from bench.admission.report import draw_figure, steps_table
from bench.admission.rounds import measure_closed_loop, measure_discovery
from bench.admission.samples import INDEX, WALKS
from bench.admission.steps import measure_steps
from bench.common.origin import origin_now
from bench.common.prompts import Prompts
from bench.common.tables import print_table


def main(
    tokens: Annotated[int, typer.Option(help="Prompt length.")] = 200_000,
    block: Annotated[int, typer.Option(help="Tokens per block.")] = 32,
    shared: Annotated[float, typer.Option(help="Part of each prompt that is in the cache.")] = 0.9,
    branches: Annotated[int, typer.Option(help="Different shared prefixes.")] = 8,
    concurrency: Annotated[int, typer.Option(help="Prompts that wait at once.")] = 64,
    batch: Annotated[int, typer.Option(help="Most requests that hold a lease at once.")] = 16,
    ranks: Annotated[int, typer.Option("--pp", help="Ranks; each is a process.")] = 4,
    turns: Annotated[int, typer.Option(help="How often every prompt of a wave of prompts is new.")] = 8,
    pause: Annotated[
        float, typer.Option(help="Seconds between changes of each rank's tree in rounds.")
    ] = 0.01,
    out: Annotated[Path | None, typer.Option(help="Write all samples (seconds) as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the comparison (PNG, needs matplotlib).")] = None,
) -> None:
    """Print what each step of admission costs, by two walks and by hint index and lease."""
    suffix = -(-tokens // block) - int(tokens * shared) // block
    traffic = LongPrompts(tokens, block, shared, branches, room=(batch + 2) * suffix + 64 * CHURN_BLOCKS)
    origin = origin_now()
    rounds: dict[str, float] = {}
    with Progress() as progress:
        task = progress.add_task("measuring", total=turns + 4)
        samples = measure_steps(traffic, concurrency, turns, lambda: progress.advance(task))
        new, prefixes = Prompts(seed=2), traffic.prefixes()
        for way in (WALKS, INDEX):
            with Ranks(traffic, ranks, pause, two_walks=way == WALKS) as processes:
                processes.run(Plan(round_id=0))
                prompts = traffic.prompts(prefixes, 4 * concurrency, new)
                measure_discovery(processes, way, prompts, concurrency, samples)
                progress.advance(task)
                prompts = traffic.prompts(prefixes, 2 * concurrency, new)
                rounds[way] = measure_closed_loop(processes, way, prompts, concurrency, batch, samples)
                progress.advance(task)
    title = (
        f"{tokens} tokens, blocks of {block}, {shared:.0%} shared over {branches} branches, "
        f"{concurrency} waiting, {ranks} ranks\n"
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, measured at {origin}"
    )
    print_table(Console(), steps_table(samples, rounds, title))
    if out is not None:
        out.write_text(
            json.dumps(
                {
                    **asdict(origin),
                    "title": title,
                    "seconds": samples,
                    "rounds per admitted request": rounds,
                },
                indent=1,
            )
        )
    if figure is not None:
        draw_figure(figure, samples, title)


if __name__ == "__main__":
    typer.run(main)
