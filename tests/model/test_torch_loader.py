from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.model_files import edit_json
from tests.support.tiny_models import make_model


@pytest.fixture
def partial(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Callable[[str, tuple[str, ...]], Path]:
    """A copy whose weights are not numbers except those whose names contain one of the given parts."""

    def make(family: str, kept: tuple[str, ...]) -> Path:
        source = tiny_model(family)
        for file in source.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = load_file(source / "model.safetensors")
        for name, weight in weights.items():
            if not any(part in name for part in kept):
                weights[name] = torch.full_like(weight, torch.nan)
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return make


@pytest.mark.parametrize("weight", [None, torch.ones(5, 64)])
def test_weights_that_lack_or_have_other_shapes_are_refused_by_name(
    weight: torch.Tensor | None, partial: Callable[[str, tuple[str, ...]], Path]
) -> None:
    directory, name = partial("llama", ("",)), "model.layers.1.self_attn.q_proj.weight"
    weights = load_file(directory / "model.safetensors")
    del weights[name]
    save_file(
        weights if weight is None else {**weights, name: weight},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ConfigError, match=rf"^model: .* lacks or misshapes 1 weights, such as {name}$"):
        load_stage(directory, range(1, 2), torch.float32, "cpu")


@pytest.mark.parametrize(
    ("family", "layers", "kept"),
    [
        ("llama", range(0, 2), ("embed", "layers.0.", "layers.1.")),
        ("llama", range(2, 4), ("layers.2.", "layers.3.")),
        ("llama", range(4, 6), ("layers.4.", "layers.5.", "model.norm", "lm_head")),
        ("tied", range(0, 2), ("embed", "layers.0.", "layers.1.")),
        ("tied", range(4, 6), ("layers.4.", "layers.5.", "model.norm", "embed")),
        ("qwen3_moe", range(3, 4), ("layers.3.",)),
        ("deepseek_v3", range(1, 3), ("layers.1.", "layers.2.")),
    ],
)
def test_a_stage_needs_and_holds_its_own_layers_only(
    family: str, layers: range, kept: tuple[str, ...], partial: Callable, tiny_model: Callable
) -> None:
    stage = load_stage(partial(family, kept), layers, torch.float32, "cpu")
    whole = load_stage(tiny_model(family), range(6), torch.float32, "cpu")
    names = {name for name, _ in whole._model.named_parameters(remove_duplicate=False)}
    held = {name for name, _ in stage._model.named_parameters(remove_duplicate=False)}
    if family == "tied":
        kept = (*kept, "lm_head") if "model.norm" in kept else kept
    assert held == {name for name in names if any(part in name for part in kept)}
    inputs = torch.arange(5) if layers.start == 0 else {"hidden": torch.randn(5, 64)}
    output = stage.forward(inputs, [Chunk(0, 5, torch.tensor([0, 1]), True)], stage.make_kv(2, 4))
    result = output.logits if layers.stop == 6 else output.activations["hidden"]
    assert torch.isfinite(result).all()


def test_tied_head_uses_the_embedding(tiny_tied: Path) -> None:
    stage = load_stage(tiny_tied, range(5, 6), torch.float32, "cpu")
    head, embedding = stage._model.get_output_embeddings(), stage._model.get_input_embeddings()
    assert head.weight.data_ptr() == embedding.weight.data_ptr()


def test_windows_that_attention_does_not_ask_for_are_refused(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """The layers know no window though the configuration speaks of one: running on would be wrong."""
    directory = Path(shutil.copytree(tiny_model("llama"), tmp_path / "windowed"))
    edit_json(directory / "config.json", sliding_window=16)
    with pytest.raises(ConfigError, match=r"^model: .*attend with windows"):
        load_stage(directory, range(6), torch.float32, "cpu")


HALF_TURNED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("family", "dtype", "config"),
    [
        ("llama", torch.float32, {"rope_parameters": HALF_TURNED}),
        # Products of experts want rows of whole vectors.
        ("mixtral", torch.bfloat16, {"hidden_size": 20, "intermediate_size": 36}),
    ],
)
def test_sizes_that_transformers_cannot_compute_are_refused_in_a_sentence(
    family: str, dtype: torch.dtype, config: dict[str, Any], tmp_path: Path
) -> None:
    directory = make_model(tmp_path / "odd", family, **config)
    with pytest.raises(
        ConfigError, match=f"^model: the architecture {family} cannot be computed in .* want another dtype"
    ):
        load_stage(directory, range(6), dtype, "cpu")
