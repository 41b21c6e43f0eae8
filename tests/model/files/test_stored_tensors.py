"""Stages of quantised checkpoints compute what those of their plain twins do, and read no more than their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import checkpoint_dtype
from wavepp_worker.model.files.quantisation import Scheme
from wavepp_worker.model.files.stored_tensors import expanded_tensors
from wavepp_worker.model.files.weight_sizes import weight_sizes
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.model_files import edit_json
from tests.support.quantised_models import SCHEMES, poison, quantise, stored_bytes


def logits(directory: Path, dtype: torch.dtype, ends: tuple[int, ...]) -> torch.Tensor:
    data: torch.Tensor | dict[str, torch.Tensor] = torch.arange(9)
    for first, end in zip((0, *ends), (*ends, 6), strict=True):
        stage = load_stage(directory, range(first, end), dtype, "cpu")
        output = stage.forward(data, [Chunk(0, 9, torch.tensor([0, 1, 2]), True)], stage.make_kv(4, 4))
        data = output.activations
    assert output.logits is not None
    return output.logits


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        *(("llama", scheme) for scheme in SCHEMES),
        *((family, "fp8") for family in ("tied", "qwen3_moe", "minimax_m2", "deepseek_v3")),
        ("qwen3_moe", "pack-quantized"),
        ("qwen3_moe", "awq"),
    ],
)
def test_logits_are_those_of_the_twin_exactly(
    family: str, scheme: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    stored, twin = quantise(tiny_model(family), tmp_path, scheme)
    # Where weights lie in memory decides over kernels of float32, and thus over last bits.
    assert torch.equal(logits(stored, torch.bfloat16, (2,)), logits(twin, torch.bfloat16, (2,)))
    ours, theirs = (load_stage(each, range(6), torch.float32, "cpu") for each in (stored, twin))
    expected = dict(theirs._model.named_parameters())  # type: ignore[attr-defined]
    for name, weight in ours._model.named_parameters():  # type: ignore[attr-defined]
        assert torch.equal(weight, expected[name]), name
    assert weight_sizes(stored) == weight_sizes(twin)
    assert checkpoint_dtype(stored) == "float32"


def test_experts_that_are_stored_as_one_are_expanded_as_one(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """As transformers saves what it quantised itself."""
    whole = load_stage(tiny_model("qwen3_moe"), range(6), torch.float32, "cpu")._model  # type: ignore[union-attr]
    source = tmp_path / "fused"
    source.mkdir()
    (source / "config.json").write_bytes((tiny_model("qwen3_moe") / "config.json").read_bytes())
    weights = {name: weight.clone() for name, weight in whole.named_parameters()}
    assert any(weight.ndim == 3 for weight in weights.values())
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    stored, twin = quantise(source, tmp_path, "fp8")
    assert torch.equal(logits(stored, torch.bfloat16, (3,)), logits(twin, torch.bfloat16, (3,)))


@pytest.mark.parametrize(
    ("family", "layers", "kept"),
    [
        ("llama", range(0, 2), ("embed", "layers.0.", "layers.1.")),
        ("llama", range(2, 4), ("layers.2.", "layers.3.")),
        ("qwen3_moe", range(4, 6), ("layers.4.", "layers.5.", "model.norm", "lm_head")),
        ("deepseek_v3", range(1, 3), ("layers.1.", "layers.2.")),
    ],
)
def test_a_stage_reads_its_own_bytes_only_and_says_what_they_become(
    family: str,
    layers: range,
    kept: tuple[str, ...],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, _ = quantise(tiny_model(family), tmp_path, "fp8")
    poison(stored, kept)
    said: list[int] = []
    monkeypatch.setattr("wavepp_worker.model.torch_loader._say_cost", lambda *given: said.append(given[3]))
    stage = load_stage(stored, layers, torch.bfloat16, "cpu")
    assert said == [stored_bytes(stored, kept)]
    data = torch.arange(5) if layers.start == 0 else {"hidden": torch.ones(5, 64, dtype=torch.bfloat16)}
    output = stage.forward(data, [Chunk(0, 5, torch.tensor([0, 1]), True)], stage.make_kv(2, 4))
    result = output.logits if layers.stop == 6 else output.activations["hidden"]
    assert result is not None
    assert torch.isfinite(result).all()
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        load_stage(stored, layers, torch.bfloat16, "cpu")
    line = f"layers {layers.start} to {layers.stop - 1} are stored as fp8 in 0.00 GiB and kept as bfloat16"
    assert line in caplog.text


def test_what_does_not_fit_together_is_refused_by_its_name(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    stored, _ = quantise(tiny_model("llama"), tmp_path, "fp8")
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[f"{name}_scale_inv"] = torch.ones(5, 5)
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=rf"^model: {name} cannot be computed from .*scales are .5, 5., where"
    ):
        load_stage(stored, range(1), torch.bfloat16, "cpu")
    load_stage(stored, range(1, 2), torch.bfloat16, "cpu")
    tensors[f"{name}_scale_inv"] = torch.ones(0, 5)
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"^model: {name} cannot be computed from"):
        load_stage(stored, range(1), torch.bfloat16, "cpu")
    del tensors[f"{name}_scale_inv"]
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    with (
        ExitStack() as stack,
        pytest.raises(ConfigError, match=rf"^model: {name} is stored as F8_E4M3 and has no"),
    ):
        expanded_tensors(stored, Scheme("fp8"), stack)
    edit_json(stored / "config.json", quantization_config={"quant_method": "hqq"})
    with pytest.raises(ConfigError, match="quantised as hqq, which cannot be undone here; fp8, compressed"):
        load_stage(stored, range(1), torch.bfloat16, "cpu")
