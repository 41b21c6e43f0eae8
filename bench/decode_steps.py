"""How long a decode worker's step takes on a CPU: ``python -m bench.decode_steps [--model DIR] [--threads 2]``.

One engine computes its prompts itself, and then a token of every request in each step.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from wavepp_worker import token_ids
from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest, DecodeStep

from bench.common.origin import origin_now
from bench.common.percentile import p95
from bench.common.policies import require_known
from bench.common.small_model import tiny_llama
from bench.common.tables import plain_table, print_table
from bench.vllm.sides import DTYPES, Dtype

SEED = 7
PATIENCE_SECONDS = 300.0
CASES = ("1:200", "1:2000", "4:200", "8:200", "8:2000", "16:200")


def decode_steps(
    engine: DecodeEngine, seen: list[DecodeStep], requests: int, prompt: int, tokens: int
) -> list[float]:
    """Seconds of the steps in which all requests generate, and nothing else is computed.

    Args:
        seen: what ``engine`` tells of its steps.
        requests: at a time.
        prompt: tokens of each one's own.
        tokens: that each generates.
    """
    draw = np.random.default_rng(SEED)
    vocabulary, ends = engine.info.vocab_size, [threading.Event() for _ in range(requests)]
    failures: list[str] = []
    seen.clear()

    def note(end: threading.Event, output: DecodeOutput) -> None:
        if output.error is not None:
            failures.append(output.error)
        if output.finish_reason is not None:
            end.set()

    for number, end in enumerate(ends):
        packed = token_ids.pack(draw.integers(0, vocabulary, prompt))
        engine.submit(
            DecodeRequest(request_id=f"r{number}", tokens=packed, max_tokens=tokens, handoff=None),
            partial(note, end),
        )
    if not all(end.wait(PATIENCE_SECONDS) for end in ends):
        failures.append(f"a request took longer than {PATIENCE_SECONDS:.0f} s")
    if failures:
        raise RuntimeError(failures[0])
    steps = [each.seconds for each in seen if not each.prompt_requests and each.requests == requests]
    if not steps:
        raise RuntimeError(
            f"{requests} requests never generated together; give more --tokens or shorter prompts"
        )
    return steps


def measure(
    model: Path, cases: Sequence[tuple[int, int]], dtype: Dtype, threads: int, tokens: int
) -> list[list[float]]:
    """``decode_steps`` of each case; call it in a process of its own, as a worker is one."""
    config = DecodeConfig(
        model=model,
        dtype=dtype,
        threads=threads,
        max_model_len=max(prompt + tokens for _, prompt in cases),
        kv_tokens=max(requests * (prompt + tokens + 16) for requests, prompt in cases),
    )
    seen: list[DecodeStep] = []
    with DecodeEngine(config, on_step=seen.append) as engine:
        return [
            decode_steps(engine, seen, requests, prompt, tokens)
            for requests, prompt in track(cases, "decoding", transient=True)
        ]


def _case(written: str) -> tuple[int, int]:
    parts = written.split(":")
    if len(parts) != 2 or not all(part.isdigit() and int(part) for part in parts):
        raise typer.BadParameter(f"{written} is no case; give one like 8:2000", param_hint="--case")
    return int(parts[0]), int(parts[1])


def main(
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face directory; default: a tiny Llama.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help=f"Requests:tokens of each prompt; default: {', '.join(CASES)}.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"{' or '.join(DTYPES)}.")] = DTYPES[0],
    threads: Annotated[int, typer.Option(help="That compute.", min=1)] = 2,
    tokens: Annotated[int, typer.Option(help="That each request generates.", min=8)] = 64,
) -> None:
    """Print milliseconds of a step, and the tokens per second that makes."""
    cases = [_case(each) for each in case or CASES]
    require_known((dtype,), DTYPES)
    table = plain_table(
        "A step of a decode worker, ms",
        f"{'tiny Llama' if model is None else model.name}, {dtype}, {threads} compute threads; {origin_now()}",
        numbers=("requests", "after tokens", "median", "p95", "tokens/s"),
    )
    os.environ.update(with_short_spins(os.environ))
    with (
        tempfile.TemporaryDirectory() as made,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker,
    ):
        path = tiny_llama(Path(made), dtype) if model is None else model
        for (requests, prompt), seconds in zip(
            cases,
            worker.submit(measure, path, cases, cast(Dtype, dtype), threads, tokens).result(),
            strict=True,
        ):
            figures = (1e3 * median(seconds), 1e3 * p95(seconds), requests / median(seconds))
            table.add_row(str(requests), str(prompt), *(f"{each:,.1f}" for each in figures))
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
