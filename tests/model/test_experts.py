"""Experts of transformers' models multiply in groups, which is torch's own kernel where it has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers.integrations.moe as moe
from wavepp_worker.model.stage_loader import load_stage


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3", "minimax_m2", "gpt_oss"])
def test_experts_multiply_in_groups_and_give_the_eager_numbers(
    family: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_stage(tiny_model(family), range(5, 6), torch.float32, "cpu")._model
    experts, picked = model.base_model.layers[5].mlp.experts, model.config.num_experts_per_tok
    calls, grouped = [], moe._grouped_mm
    monkeypatch.setattr(moe, "_grouped_mm", lambda *a, **k: calls.append(1) or grouped(*a, **k))
    torch.manual_seed(3)
    arguments = (
        torch.randn(7, model.config.hidden_size),
        torch.stack([torch.randperm(4)[:picked] for _ in range(7)]),
        torch.rand(7, picked),
    )
    got = experts(*arguments)
    assert calls
    calls.clear()
    monkeypatch.setattr(experts.config, "_experts_implementation", "eager")
    torch.testing.assert_close(got, experts(*arguments), rtol=1e-4, atol=1e-4)
    assert not calls
