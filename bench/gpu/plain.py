"""What a device can do without this engine: dense matrix products, and transformers' own forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

MATRIX = {"cpu": 512, "cuda": 8192}
"""Rows and columns of the matrices multiplied, by kind of device."""
REPEATS, PRODUCTS = 5, 10


def matmul_rate(device: str) -> float:
    """Operations per second of dense bfloat16 matrix products: the best of some runs of several.

    On a CPU of float32, if that is faster: without instructions for bfloat16, stages compute so.
    """
    kind = torch.device(device).type
    size, best = MATRIX[kind], math.inf
    for dtype in (torch.bfloat16, torch.float32)[: 2 if kind == "cpu" else 1]:
        multiply = partial(torch.matmul, *torch.randn(2, size, size, dtype=dtype, device=device))
        best = min(best, *(_seconds(multiply, PRODUCTS, device) for _ in range(REPEATS)))
    return 2.0 * size**3 * PRODUCTS / best


def plain_seconds(directory: Path, prompts: Sequence[list[int]], device: str) -> list[float]:
    """What transformers takes for each prompt, one after the other, with SDPA and without any cache."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).to(device)
    taken = []
    with torch.inference_mode():
        for prompt in [prompts[0], *prompts]:
            ids = torch.tensor([prompt], device=device)
            taken.append(_seconds(partial(model, ids, use_cache=False, logits_to_keep=1), 1, device))
    # The first time is not like the others.
    return taken[1:]


def _seconds(work: Callable[[], object], times: int, device: str) -> float:
    _wait(device)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
