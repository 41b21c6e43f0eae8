"""R1, R2 and R3 side by side on real processes (paper, section 5.8): what each mechanism of admission brings.

``python -m bench.ablation`` runs lockstep admission (R1), wave admission (R2), and leases with escrow on top
(R3) on a small random model, over cold, shared-prefix and mixed traffic that does not fit the cache. The
three run in turns, and every figure is a median over the turns, so that the machine's noise hits all alike.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from wavepp_worker import EngineConfig, PrefillEngine

from bench.common.closed_loop import LoopFigures, closed_loop
from bench.common.origin import Origin, origin_now
from bench.common.prompts import Prompts
from bench.common.small_model import VOCABULARY, small_model
from bench.common.tables import plain_table, print_table

RUNGS = {
    "R1 lockstep": {"admission": "lockstep", "ownership": "none"},
    "R2 + wave": {"admission": "wave", "ownership": "none"},
    "R3 + lease": {"admission": "wave", "ownership": "lease"},
}


def mixed_prompts(kind: str, requests: int, length: int, seed: int) -> list[bytes]:
    """Packed prompts of ``length`` tokens: all new (cold), or 90 % shared with one of 8 prefixes, or half of each."""
    draw, new = random.Random(seed), Prompts(seed, VOCABULARY)
    most = length * 9 // 10
    shared = [new.tokens(most) for _ in range(8)]
    prompts = []
    for index in range(requests):
        if kind == "cold" or (kind == "mixed" and index % 2):
            prompts.append(new.tokens(length))
        else:
            prompts.append(draw.choice(shared) + new.tokens(length - most))
    return prompts


def main(
    pp: Annotated[int, typer.Option(help="Ranks; each is a process.")] = 4,
    length: Annotated[int, typer.Option(help="Prompt length.")] = 1024,
    requests: Annotated[int, typer.Option(help="Requests of each measurement.")] = 96,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.")] = 16,
    kv_tokens: Annotated[
        int, typer.Option(help="KV of each rank; the prefixes alone take 8 prompts.")
    ] = 16384,
    turns: Annotated[int, typer.Option(help="Times each rung is measured.")] = 3,
    round_delay: Annotated[float, typer.Option(help="Seconds added to every admission round.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print throughput, completion times and rounds of R1, R2 and R3 under cache pressure."""
    kinds, origin = ("cold", "shared", "mixed"), origin_now()
    loads: dict[tuple[str, str], list[LoopFigures]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn()) as progress,
    ):
        model = small_model(Path(directory))
        task = progress.add_task("measuring", total=turns * len(RUNGS) * len(kinds))
        for turn in range(turns):
            for rung, switches in RUNGS.items():
                config = EngineConfig(
                    model=model,
                    pp=pp,
                    dtype="float32",
                    max_num_batched_tokens=256,
                    kv_tokens=kv_tokens,
                    max_model_len=length + 16,
                    round_delay=round_delay,
                    **switches,  # type: ignore[arg-type]
                )
                with PrefillEngine(config) as engine:
                    for kind in kinds:
                        prompts = mixed_prompts(kind, requests, length, seed=turn)
                        loads.setdefault((kind, rung), []).append(
                            closed_loop(engine, prompts, concurrency, kind)
                        )
                        progress.advance(task)
                    engine.audit()
    report(kinds, loads, origin)
    if out is not None:
        rows = [
            {
                **asdict(origin),
                "traffic": kind,
                "rung": rung,
                "throughput": [load.throughput for load in measured],
                "p50": [load.p50 for load in measured],
                "p95": [load.p95 for load in measured],
                "reused": [load.reused / load.tokens for load in measured],
                "rounds": [load.rounds for load in measured],
            }
            for (kind, rung), measured in loads.items()
        ]
        out.write_text(json.dumps(rows, indent=1))


def report(kinds: Sequence[str], loads: dict[tuple[str, str], list[LoopFigures]], origin: Origin) -> None:
    """Print the table; ratios are of one turn each, against R1 of the same turn."""
    table = plain_table(
        "admission, medians over the turns",
        f"measured at {origin}",
        texts=["traffic", "rung"],
        numbers=["tokens/s", "of R1", "p50 s", "p95 s", "reused", "rounds/request"],
    )
    for kind in kinds:
        base = loads[kind, next(iter(RUNGS))]
        for rung in RUNGS:
            measured = loads[kind, rung]
            ratios = [load.throughput / first.throughput for load, first in zip(measured, base, strict=True)]
            table.add_row(
                kind,
                rung,
                f"{statistics.median(load.throughput for load in measured):,.0f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                f"{statistics.median(load.p50 for load in measured):.2f}",
                f"{statistics.median(load.p95 for load in measured):.2f}",
                f"{statistics.median(load.reused / load.tokens for load in measured):.0%}",
                f"{statistics.median(load.rounds / len(load.completion) for load in measured):.2f}",
            )
        table.add_section()
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
