"""Sizes that headers tell are those of what is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.model.files.weight_sizes import has_weights, weight_sizes
from wavepp_worker.model.kv.layer_cache import token_bytes
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.stage_loader import load_stage


@pytest.mark.parametrize("family", ["llama", "tied", "qwen3_moe", "deepseek_v3"])
def test_what_a_stage_takes_is_known_before(family: str, tiny_model: Callable[[str], Path]) -> None:
    model = tiny_model(family)
    sizes, shape, info = weight_sizes(model), read_model_shape(model), read_model_info(model)
    stage = load_stage(model, range(info.num_layers), torch.float32, "cpu")
    assert stage.make_kv(2, 4).bytes_per_token == token_bytes(shape.caches, "float32")
    loaded = sum(tensor.numel() for tensor in stage._model.parameters())  # type: ignore[attr-defined]
    embedding = info.vocab_size * info.hidden_size
    known = sizes.layers + sizes.ends - (embedding if family == "tied" else 0)
    # Headers have what a stage keeps beside its parameters, too.
    assert loaded <= known <= 1.001 * loaded
    assert sizes.layers / info.num_layers <= sizes.layer <= sizes.layers
    assert sizes.width > info.hidden_size
    assert has_weights(model)
    assert not has_weights(model / "nowhere")
