"""What one core of this machine can do: what a stage's time is held against."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

SECONDS = 0.5
"""That each is measured, about; the best run counts."""
MATRIX = 1024
READ_BYTES = 256 << 20
"""More than any cache of a core holds."""


def limits() -> dict[str, float]:
    """GFLOP/s of a large matrix product in bfloat16 and in float32, and GB/s that are read from memory; one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {
            f"matmul {name}, GFLOP/s": 2 * MATRIX**3 / _best(_product(dtype)) / 1e9
            for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32))
        }
        memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        found["memory read, GB/s"] = READ_BYTES / _best(memory.sum) / 1e9
    finally:
        torch.set_num_threads(threads)
    return found


def _product(dtype: torch.dtype) -> Callable[[], object]:
    a, b = (torch.randn(MATRIX, MATRIX).to(dtype) for _ in range(2))
    return lambda: a @ b


def _best(call: Callable[[], object]) -> float:
    call()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best
