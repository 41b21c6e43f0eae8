"""One engine's run over all cells: ours in this process, vLLM's under its own Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from wavepp_worker import EngineConfig, PrefillEngine, token_ids

from bench.common.closed_loop import closed_loop
from bench.common.percentile import p95, percentile
from bench.vllm.cells import Traffic, traffic_of

Order = Literal["fcfs", "prefix"]
ORDERS: tuple[Order, ...] = get_args(Order)
PEER = Path(__file__).with_name("peer.py")
PEER_SECONDS = 3600.0
"""What vLLM may take for all cells, its compilation included."""


@dataclass(frozen=True)
class Setting:
    """What both sides get, and how many stages this run has.

    Attributes:
        wave_tokens: ``max_num_batched_tokens``.
        kv_tokens: tokens of KV that each stage has room for.
        order: ours: who comes first under pressure.
    """

    model: Path
    vocabulary: int
    seed: int
    stages: int
    wave_tokens: int
    block: int
    kv_tokens: int
    order: Order = "prefix"


@dataclass(frozen=True)
class Figures:
    """One cell of one side; seconds."""

    tokens_per_second: float
    reused: float
    p50: float
    p95: float


def _figures(traffic: Traffic, seconds: float, reused: int, completion: Sequence[float]) -> Figures:
    tokens = sum(map(len, traffic.prompts))
    return Figures(tokens / seconds, reused / tokens, percentile(completion, 0.5), p95(completion))


def ours(setting: Setting, cells: Sequence[str], cores: int) -> Iterator[tuple[str, Figures]]:
    """Run each cell on a fresh engine, which a prompt of each size has warmed up."""
    for cell in cells:
        traffic = traffic_of(cell, setting.seed, setting.vocabulary)
        config = EngineConfig(
            model=setting.model,
            pp=setting.stages,
            dtype="bfloat16",
            threads=max(1, cores // setting.stages),
            max_num_batched_tokens=setting.wave_tokens,
            block_size=setting.block,
            kv_tokens=setting.kv_tokens,
            max_model_len=traffic.longest + 8,
            max_num_seqs=128,
            order=setting.order,
        )
        with PrefillEngine(config) as engine:
            for length in sorted({min(each, traffic.longest) for each in (64, 512, 2048)}):
                engine.prefill([1] * length)
            for prompt in traffic.known:
                engine.prefill(prompt)
            measured = closed_loop(engine, map(token_ids.pack, traffic.prompts), traffic.clients, "timed")
        yield cell, _figures(traffic, measured.seconds, measured.reused, measured.completion)


def theirs(python: Path, setting: Setting, cells: Sequence[str]) -> Iterator[tuple[str, Figures]]:
    """Run each cell on one engine, whose cache is emptied before.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    asked = {
        "model": str(setting.model),
        "cells": list(cells),
        "seed": setting.seed,
        "pp": setting.stages,
        "wave_tokens": setting.wave_tokens,
        "block": setting.block,
        "kv_tokens": setting.kv_tokens,
    }
    words = [str(python), str(PEER), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PEER_SECONDS)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"cell"')]
    if len(rows) < len(cells):
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(
            f"vLLM answered {len(rows)} of {len(cells)} cells and ended with {done.returncode}:\n{said}"
        )
    for row in rows:
        traffic = traffic_of(row["cell"], setting.seed, setting.vocabulary)
        yield row["cell"], _figures(traffic, row["seconds"], row["reused"], row["completion"])
