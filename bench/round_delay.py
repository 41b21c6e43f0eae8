"""Proof that admission does not block execution: throughput with every round delayed, against no delay.

``python -m bench.round_delay`` keeps more requests admitted than the pipeline can run, and measures both in
turns; the paper's claim (section 4.2) is that the LOOP threads never wait for a round. Stages are virtual devices
(``bench.paper`` says how), so that the ranks do not compete for the cores; all else is real.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from wavepp_worker import EngineConfig, PrefillEngine

from bench.common.closed_loop import closed_loop
from bench.common.origin import origin_now
from bench.common.prompts import Prompts
from bench.common.systems import BLOCK, SYSTEMS, write_model_dir

MODEL = "glm-5.2-pp4"


def main(
    delay: Annotated[float, typer.Option(help="Seconds added to every round.")] = 0.005,
    speed: Annotated[float, typer.Option(help="How much faster than the paper's the devices are.")] = 3.0,
    length: Annotated[int, typer.Option(help="Prompt length.")] = 16384,
    requests: Annotated[int, typer.Option(help="Requests of each measurement.")] = 48,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.")] = 24,
    turns: Annotated[int, typer.Option(help="Times each is measured, in turns.")] = 5,
) -> None:
    """Print the ratio of both throughputs, turn by turn."""
    with tempfile.TemporaryDirectory() as directory:
        model = write_model_dir(MODEL, speed, Path(directory))

        def engine(seconds: float) -> PrefillEngine:
            return PrefillEngine(
                EngineConfig(
                    model=model,
                    pp=SYSTEMS[MODEL].stages,
                    max_num_batched_tokens=4096,
                    block_size=BLOCK,
                    kv_tokens=2 * concurrency * length,
                    max_model_len=length + 16,
                    round_delay=seconds,
                )
            )

        origin, ratios = origin_now(), []
        with engine(0.0) as plain, engine(delay) as delayed:
            for turn in track(range(-1, turns), description="measuring"):
                draw = Prompts(seed=turn + 1)
                prompts = [draw.tokens(length) for _ in range(requests)]
                order = (plain, delayed) if turn % 2 else (delayed, plain)
                loads = {each: closed_loop(each, prompts, concurrency, f"t{turn}") for each in order}
                if turn >= 0:
                    ratios.append(loads[delayed].throughput / loads[plain].throughput)
    console = Console()
    console.print(f"throughput with {1000 * delay:g} ms added to every round, of that without ({origin}):")
    console.print(", ".join(f"{ratio:.3f}" for ratio in ratios), f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    typer.run(main)
