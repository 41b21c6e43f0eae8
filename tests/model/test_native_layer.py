"""Layers that take few tokens in one call: bit for bit what their modules answer, where all parts are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.native_layer import _NativeLayer
from wavepp_worker.model.native_library import computes_on
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.model.thin_linear import ThinLinear
from wavepp_worker.model.torch_stage import TorchStage

from tests.support.lora_adapters import make_adapter

pytestmark = pytest.mark.skipif(
    not computes_on(torch.bfloat16, torch.device("cpu")),
    reason="no compiler at installation, or a CPU without AVX2",
)
BLOCK = 4
"""Each wave's chunks as (request, first token, end, whether its logits are wanted)."""
WAVES = (
    ((0, 0, 3, False),),
    ((0, 3, 4, True), (1, 0, 2, False)),
    ((0, 4, 5, True), (1, 2, 3, True)),
    ((2, 0, 70, True),),
    ((0, 5, 6, True), (1, 3, 4, True), (2, 70, 71, True)),
    ((2, 71, 74, True), (1, 4, 5, False)),
)


def load(directory: Path, layers: range, dtype: torch.dtype) -> TorchStage:
    stage = load_stage(directory, layers, dtype, "cpu", (), "auto")
    assert isinstance(stage, TorchStage)
    return stage


def answers(stage: TorchStage) -> list[torch.Tensor]:
    """What a stage answers to each wave, and what it keeps."""
    generator = torch.Generator().manual_seed(5)
    kv, hidden = stage.make_kv(40, BLOCK), stage._model.config.hidden_size
    tables = [torch.arange(0, 4), torch.arange(4, 8), torch.arange(10, 30)]
    found = []
    for wave in WAVES:
        chunks = [Chunk(a, b - a, tables[n], wanted) for n, a, b, wanted in wave]
        tokens = sum(chunk.length for chunk in chunks)
        if stage.layers.start:
            given = {"hidden": torch.randn(tokens, hidden, generator=generator).to(stage.dtype)}
            output = stage.forward(given, chunks, kv)
        else:
            output = stage.forward(torch.randint(0, 290, (tokens,), generator=generator), chunks, kv)
        found += [*output.activations.values()] if output.logits is None else [output.logits]
    return [*found, *(pool for layer in stage.layers for pool in kv.pools(layer))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers", [range(6), range(2), range(2, 6)])
@pytest.mark.parametrize("family", ["llama", "qwen3", "tied", "mistral"])
def test_it_answers_what_its_modules_answer(
    family: str,
    layers: range,
    dtype: torch.dtype,
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With biases, norms of heads, and windows; the last layer for wanted tokens only."""
    stage = load(tiny_model(family), layers, dtype)
    assert all("forward" in vars(layer) for layer in stage._model.base_model.layers[slice(*_ends(layers))])
    at_once = answers(stage)
    monkeypatch.setattr(_NativeLayer, "_most_tokens", lambda *_: 0)
    one_by_one = answers(stage)
    assert len(at_once) == len(one_by_one)
    for own, other in zip(at_once, one_by_one, strict=True):
        assert torch.equal(own, other)


def _ends(layers: range) -> tuple[int, int]:
    return layers.start, layers.stop


def test_few_tokens_do_not_go_through_its_parts(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = load(tiny_llama, range(2), torch.bfloat16)
    called: list[int] = []
    forward = ThinLinear.forward
    monkeypatch.setattr(ThinLinear, "forward", lambda self, x: called.append(x.shape[-2]) or forward(self, x))
    answers(stage)
    assert set(called) == {70}, "but more do"


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gemma3_text", "granite"])
def test_layers_that_compute_something_else_stay(family: str, tiny_model: Callable[[str], Path]) -> None:
    stage = load(tiny_model(family), range(3), torch.bfloat16)
    for layer in stage._model.base_model.layers[:3]:
        assert not isinstance(getattr(vars(layer).get("forward"), "__self__", None), _NativeLayer)


def test_a_layer_with_adapters_stays(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "one", tiny_llama)
    adapters = list(read_adapters([f"one={adapter}"]).values())
    stage = load_stage(tiny_llama, range(2), torch.float32, "cpu", adapters, "auto")
    assert isinstance(stage, TorchStage)
    for layer in stage._model.base_model.layers[:2]:
        assert "forward" not in vars(layer)
