"""What a device can do, of products that take a known time."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import plain


def test_the_rate_is_that_of_the_products_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the dtype that the CPU is faster at, and not of its first products: results are shares of this rate."""
    now, begun, rates = 0.0, 0, {torch.bfloat16: 1e9, torch.float32: 3e9}

    def multiply(left: torch.Tensor, right: torch.Tensor) -> None:
        nonlocal now, begun
        (rows, inner), columns = left.shape, right.shape[1]
        begun += 1
        now += (10 if begun == 1 else 1) * 2 * rows * inner * columns / rates[left.dtype]

    monkeypatch.setitem(plain.MATRIX, "cpu", 16)
    monkeypatch.setattr(torch, "matmul", multiply)
    monkeypatch.setattr(plain.time, "perf_counter", lambda: now)
    assert plain.matmul_rate("cpu") == pytest.approx(3e9)
    begun, rates[torch.float32] = 0, 0.5e9
    assert plain.matmul_rate("cpu") == pytest.approx(1e9)
