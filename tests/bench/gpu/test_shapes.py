"""What a prefill is counted as, against what torch counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from bench.gpu.shapes import SHAPES, write_model


def test_matrix_products_are_those_that_torch_counts(tmp_path: Path) -> None:
    shape, tokens = SHAPES["tiny"], 24
    model = AutoModelForCausalLM.from_pretrained(write_model(tmp_path, shape, "cpu"))
    assert model.dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.zeros(1, tokens, dtype=torch.int64), logits_to_keep=1)
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    seen = tokens * (tokens + 1) / 2
    attention = 4 * shape.layers * shape.heads * shape.head_dim * seen
    assert shape.flops([(tokens, 0)]) == counted + attention


def test_what_is_reused_is_not_computed() -> None:
    shape = SHAPES["8b"]
    head = 2 * shape.hidden * shape.vocabulary
    parts = shape.flops([(4096, 0), (10_000, 4096)])
    assert parts == pytest.approx(shape.flops([(10_000, 0)]) + head)
    assert 2 * 7e9 * 4096 < shape.flops([(4096, 0)]) < 2 * 8e9 * 4096
