from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import dtype_choice
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.stage_loader import resolve_dtype


def test_dtype_is_resolved(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = read_model_info(copy)
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: True)
    assert resolve_dtype("auto", info) == torch.float32
    assert resolve_dtype("bfloat16", info) == torch.bfloat16
    for stored, wanted in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        weights = load_file(copy / "model.safetensors")
        save_file({k: v.to(stored) for k, v in weights.items()}, copy / "model.safetensors")
        info = read_model_info(copy)
        assert info.dtype == str(stored).removeprefix("torch.")
        assert resolve_dtype("auto", info) == wanted
    half = replace(info, dtype="bfloat16")
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: False)
    assert resolve_dtype("auto", half) == torch.float32
    assert resolve_dtype("auto", half, "cuda:1") == torch.bfloat16
    assert resolve_dtype("bfloat16", half) == torch.bfloat16
    with pytest.raises(ConfigError, match="dtype: float16"):
        resolve_dtype("float16", info)
