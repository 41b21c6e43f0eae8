"""The pool of a decode engine from the memory that its device has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.decode import engine
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.kv_budget import decode_share, with_pool
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import ModelShape, read_model_shape
from wavepp_worker.model.stage_loader import load_stage

from tests.support.model_files import without_layer_types

GIB = 1 << 30


def test_a_fraction_of_what_is_left_beside_all_who_share(tiny_llama: Path) -> None:
    shape = read_model_shape(tiny_llama)
    config = DecodeConfig(model=tiny_llama, kv_memory_fraction=0.5, max_model_len=64)
    alone = with_pool(config, shape, free=lambda device: 4 * GIB).kv_tokens
    [share] = decode_share(config, shape)
    assert alone == int(0.5 * (4 * GIB - share.weights - share.room) / share.token_bytes)
    together = with_pool(config, shape, [share], free=lambda device: 4 * GIB).kv_tokens
    assert together is not None
    assert together < alone / 2
    fixed = DecodeConfig(model=tiny_llama, kv_tokens=8192)
    assert with_pool(fixed, shape, free=lambda device: GIB) == fixed
    with pytest.raises(ConfigError, match=r"^kv_tokens: asks for "):
        with_pool(DecodeConfig(model=tiny_llama, kv_tokens=1 << 40), shape, free=lambda device: GIB)
    assert with_pool(config.model_copy(update={"model": tiny_llama / "no"}), shape).kv_memory_fraction is None


def test_each_request_has_a_state_beside_its_tokens(tiny_model: Callable[[str], Path]) -> None:
    model = tiny_model("qwen3_next")
    shape = read_model_shape(model)
    config = DecodeConfig(
        model=model, dtype="float32", kv_memory_fraction=0.5, max_model_len=64, max_num_seqs=5
    )
    [share] = decode_share(config, shape)
    kv = load_stage(model, range(6), torch.float32, "cpu").make_kv(1, 16, 5)
    assert kv.states is not None
    assert share.beside == 5 * kv.states.block_bytes
    assert share.token_bytes == kv.bytes_per_token
    pooled = with_pool(config, shape, free=lambda device: GIB)
    assert pooled.kv_tokens == int(
        0.5 * (GIB - share.weights - share.room - share.beside) / kv.bytes_per_token
    )


def test_an_engine_knows_from_transformers_what_a_file_leaves_out(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 2's older files do not say which layers slide."""
    model = without_layer_types(tiny_model("gemma2"), tmp_path / "older")
    counted: list[ModelShape] = []

    def noted(config: DecodeConfig, shape: ModelShape) -> DecodeConfig:
        counted.append(shape)
        return with_pool(config, shape)

    monkeypatch.setattr(engine, "with_pool", noted)
    engine.DecodeEngine(DecodeConfig(model=model, kv_memory_fraction=0.01, max_model_len=64))
    assert counted[0].caches == read_model_shape(tiny_model("gemma2")).caches
