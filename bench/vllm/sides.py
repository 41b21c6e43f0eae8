"""One engine's run over all cells: ours in this process, vLLM's under its own Python."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Literal, get_args

from wavepp_worker import EngineConfig, PrefillEngine, token_ids

from bench.common.closed_loop import send_all
from bench.common.percentile import p95, percentile
from bench.vllm.cells import Traffic, traffic_of
from bench.vllm.others import Others

Order = Literal["fcfs", "prefix"]
ORDERS: tuple[Order, ...] = get_args(Order)
Dtype = Literal["bfloat16", "float32"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
PEER = Path(__file__).with_name("peer.py")
PEER_SECONDS = 3600.0
"""What vLLM may take for all cells, its compilation included."""
SAID = 20
"""Lines of what it said last that are shown if it fails."""


@dataclass(frozen=True)
class Setting:
    """What both sides get, and how many stages this run has.

    Attributes:
        wave_tokens: ``max_num_batched_tokens``.
        kv_tokens: tokens of KV that each stage has room for.
        dtype: ``bfloat16`` or ``float32``, of weights and KV.
        order: ours: who comes first under pressure.
    """

    model: Path
    vocabulary: int
    seed: int
    stages: int
    wave_tokens: int
    block: int
    kv_tokens: int
    dtype: Dtype = "bfloat16"
    order: Order = "prefix"


@dataclass(frozen=True)
class Figures:
    """One cell of one side; seconds.

    Attributes:
        others: share of all cores' time that other processes took meanwhile.
    """

    tokens_per_second: float
    requests_per_second: float
    reused: float
    p50: float
    p95: float
    others: float


def _figures(
    traffic: Traffic, seconds: float, reused: int, completion: Sequence[float], others: float
) -> Figures:
    tokens, requests = sum(map(len, traffic.prompts)), len(traffic.prompts)
    middle, late = percentile(completion, 0.5), p95(completion)
    return Figures(tokens / seconds, requests / seconds, reused / tokens, middle, late, others)


def run_ours(setting: Setting, cells: Sequence[str], cores: int) -> Iterator[tuple[str, Figures]]:
    """Run each cell on one engine, whose cache is emptied before, warmed up by a prompt of each size."""
    traffics = {cell: traffic_of(cell, setting.seed, setting.vocabulary) for cell in cells}
    longest = max(traffic.longest for traffic in traffics.values())
    config = EngineConfig(
        model=setting.model,
        pp=setting.stages,
        dtype=setting.dtype,
        threads=max(1, cores // setting.stages),
        max_num_batched_tokens=setting.wave_tokens,
        block_size=setting.block,
        kv_tokens=setting.kv_tokens,
        max_model_len=longest + 8,
        max_num_seqs=128,
        order=setting.order,
    )
    with PrefillEngine(config) as engine:
        for length in sorted({min(each, longest) for each in (64, 512, 2048)}):
            engine.prefill([1] * length)
        for cell, traffic in traffics.items():
            engine.clear()
            for prompt in traffic.known:
                engine.prefill(prompt)
            packed = [token_ids.pack(prompt) for prompt in traffic.prompts]
            others, begun = Others(), time.perf_counter()
            results = send_all(engine, packed, traffic.clients, cell)
            seconds, share = time.perf_counter() - begun, others.share()
            completion = [result.timings.total for result in results]
            reused = sum(result.reused_tokens for result in results)
            yield cell, _figures(traffic, seconds, reused, completion, share)


def run_theirs(python: Path, setting: Setting, cells: Sequence[str]) -> Iterator[tuple[str, Figures]]:
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
        "dtype": setting.dtype,
    }
    words = [str(python), str(PEER), json.dumps(asked)]
    environment = os.environ | {"LD_PRELOAD": ":".join(map(str, preloaded(python)))}
    rest, tail = list(cells), deque[str](maxlen=SAID)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None, "it was asked for"
        overdue = Timer(PEER_SECONDS, process.kill)
        overdue.start()
        try:
            for line in process.stdout:
                if not line.startswith('{"cell"'):
                    tail.append(line)
                    continue
                row = json.loads(line)
                rest.remove(row["cell"])
                traffic = traffic_of(row["cell"], setting.seed, setting.vocabulary)
                figures = _figures(traffic, row["seconds"], row["reused"], row["completion"], row["others"])
                yield row["cell"], figures
        finally:
            overdue.cancel()
            process.terminate()
    if rest:
        said = "".join(tail)
        raise RuntimeError(f"vLLM ended with {process.returncode} before it had answered {rest}:\n{said}")


def preloaded(python: Path) -> list[Path]:
    """What vLLM's manual says to preload on CPUs, as far as it is installed: its OpenMP, and a fast allocator."""
    found = python.absolute().parent.parent.glob("lib/libiomp5.so")
    return [*found, *sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libtcmalloc_minimal.so.4"))]
