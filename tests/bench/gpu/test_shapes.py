"""What a prefill is counted as, against what torch counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from bench.gpu.shapes import SHAPES, write_model


def test_matrix_products_are_those_that_torch_counts(tmp_path: Path) -> None:
    shape, tokens = SHAPES["tiny"], 24
    directory = write_model(tmp_path, shape, "cpu")
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.dtype == torch.bfloat16

    def counted(forward: Callable[[], Any]) -> int:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            forward()
        return counter.get_flop_counts()["Global"][torch.ops.aten.mm]

    whole = counted(lambda: model(torch.zeros(1, tokens, dtype=torch.int64), logits_to_keep=1))
    seen = tokens * (tokens + 1) / 2
    attention = 4 * shape.layers * shape.heads * shape.head_dim * seen
    assert shape.flops([(tokens, 0)], trimmed=False) == whole + attention
    with pytest.MonkeyPatch.context() as patch:
        # Kernels of our own are not counted.
        patch.setattr(native_library, "library", lambda: None)
        stage = load_stage(directory, range(shape.layers), torch.bfloat16, "cpu")
    chunks = [Chunk(0, tokens, torch.arange(2), True)]
    ours = counted(
        lambda: stage.forward(torch.zeros(tokens, dtype=torch.int64), chunks, stage.make_kv(2, 16))
    )
    assert shape.flops([(tokens, 0)], trimmed=True) == ours + attention


def test_what_is_reused_is_not_computed() -> None:
    shape = SHAPES["8b"]
    head = 2 * shape.hidden * shape.vocabulary
    parts = shape.flops([(4096, 0), (10_000, 4096)], trimmed=False)
    assert parts == pytest.approx(shape.flops([(10_000, 0)], trimmed=False) + head)
    assert 2 * 7e9 * 4096 < shape.flops([(4096, 0)], trimmed=True) < 2 * 8e9 * 4096
