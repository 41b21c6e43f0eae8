"""Layers that compute in one call: bit for bit what their modules answer, where all parts are known."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from wavepp_worker.model import torch_loader
from wavepp_worker.model.cpu.fused_decoder_layers import FusedDecoderLayers, _DecoderLayer, _Wave
from wavepp_worker.model.cpu.native_library import computes_on
from wavepp_worker.model.cpu.native_linear import NativeLinear, make_native, most_tokens, takes_many
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.model.torch_stage import TorchStage

from tests.support.lora_adapters import make_adapter
from tests.support.tiny_models import make_model
from tests.support.torch_threads import in_threads

pytestmark = pytest.mark.skipif(
    not computes_on(torch.bfloat16, torch.device("cpu")),
    reason="no compiler at installation, or a CPU without AVX2",
)
BLOCK = 4
WAVES = (
    ((0, 0, 3, False),),
    ((0, 3, 4, True), (1, 0, 2, False)),
    ((0, 4, 5, True), (1, 2, 3, True)),
    ((2, 0, 70, True),),
    ((0, 5, 6, True), (1, 3, 4, True), (2, 70, 71, True)),
    ((2, 71, 74, True), (1, 4, 5, False)),
)
"""Each wave's chunks as (request, first token, end, whether its logits are wanted)."""


def load(directory: Path, layers: range, dtype: torch.dtype) -> TorchStage:
    stage = load_stage(directory, layers, dtype, "cpu", (), "auto")
    assert isinstance(stage, TorchStage)
    return stage


def is_native(layer: nn.Module) -> bool:
    """Whether it is computed in one call with others."""
    return isinstance(
        getattr(getattr(vars(layer).get("forward"), "func", None), "__self__", None), FusedDecoderLayers
    )


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many layers each call from now on computes, and for how many tokens the last of them answers."""
    counts: list[tuple[int, int]] = []
    compute = FusedDecoderLayers._compute

    def counting(self: FusedDecoderLayers, *given: Any) -> torch.Tensor:
        out = compute(self, *given)
        counts.append((len(self._numbers), out.shape[1]))
        return out

    monkeypatch.setattr(FusedDecoderLayers, "_compute", counting)
    return counts


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
    assert all(is_native(stage._model.base_model.layers[i]) for i in layers)
    at_once = answers(stage)
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    one_by_one = answers(stage)
    assert len(at_once) == len(one_by_one)
    for own, other in zip(at_once, one_by_one, strict=True):
        assert torch.equal(own, other)


def test_layers_of_different_windows_compute_apart(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two see all tokens, the others a few: their tokens lie elsewhere in the pools."""
    directory = make_model(
        tmp_path / "mixed", "tied", use_sliding_window=True, sliding_window=6, max_window_layers=2
    )
    stage, computed = load(directory, range(6), torch.float32), counted(monkeypatch)
    kv = stage.make_kv(40, BLOCK)
    assert kv.spans == (0, 6)
    table = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    tokens = torch.randint(0, 290, (9,), generator=torch.Generator().manual_seed(1))
    for a, b in ((0, 4), (4, 8), (8, 9)):
        own = stage.forward(tokens[a:b], [Chunk(a, b - a, table, True)], kv).logits
    assert computed == [(2, 4), (4, 1)] * 2 + [(2, 1), (4, 1)], "the last layer computes for the wanted alone"
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    other = stage.forward(tokens, [Chunk(0, 9, table, True)], stage.make_kv(40, BLOCK)).logits
    assert own is not None
    torch.testing.assert_close(own, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_kernels_take_does_not_go_through_its_parts(
    dtype: torch.dtype, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = load(tiny_llama, range(2), dtype)
    called: list[int] = []
    forward = NativeLinear.forward
    monkeypatch.setattr(
        NativeLinear, "forward", lambda self, x: called.append(x.shape[-2]) or forward(self, x)
    )
    answers(stage)
    linears = [each for each in stage._model.base_model.layers[0].modules() if isinstance(each, NativeLinear)]
    most = min(map(most_tokens, linears))
    assert set(called) == {tokens for tokens in (3, 6, 70, 3, 4) if tokens > most}
    last = load(tiny_llama, range(4, 6), dtype)
    called.clear()
    answers(last)
    heads = [1, 2, 1, 3, 1]
    if most < 70:
        # The long wave goes through the last layer's modules, which answer for one token; gate and up may be one call.
        paired = takes_many(last._model.base_model.layers[5].mlp.gate_proj)
        heads[2:3] = [1] * (4 if paired else 6)
    assert [tokens for tokens in called if tokens <= 3] == heads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_too_small_for_full_precision_stay(
    dtype: torch.dtype, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = load(tiny_llama, range(2, 4), dtype)
    given = {"hidden": torch.full((5, 64), 1e-40, dtype=dtype)}
    chunk = Chunk(0, 5, torch.arange(2), False)
    at_once = stage.forward(given, [chunk], stage.make_kv(2, BLOCK)).activations["hidden"]
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    one_by_one = stage.forward(given, [chunk], stage.make_kv(2, BLOCK)).activations["hidden"]
    assert one_by_one.abs().max() > 0
    assert torch.equal(at_once, one_by_one)


def test_a_gate_may_be_packed_where_what_it_is_multiplied_with_shares_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_model(tmp_path / "model", "llama", intermediate_size=128)

    def packing(model: nn.Module) -> None:
        ups = [model.base_model.layers[i].mlp.up_proj for i in (2, 3)]
        ups[1].weight = ups[0].weight
        make_native(model)

    monkeypatch.setattr(torch_loader, "make_native", packing)
    stage = load(directory, range(2, 4), torch.bfloat16)
    given = {"hidden": torch.randn(40, 64, generator=torch.Generator().manual_seed(1)).bfloat16()}
    chunk = Chunk(0, 40, torch.arange(10), False)
    at_once = stage.forward(given, [chunk], stage.make_kv(10, BLOCK)).activations["hidden"]
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    one_by_one = stage.forward(given, [chunk], stage.make_kv(10, BLOCK)).activations["hidden"]
    torch.testing.assert_close(at_once, one_by_one)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gemma3_text", "granite"])
def test_layers_that_compute_something_else_stay(family: str, tiny_model: Callable[[str], Path]) -> None:
    stage = load(tiny_model(family), range(3), torch.bfloat16)
    for layer in stage._model.base_model.layers[:3]:
        assert not is_native(layer)


def test_a_wave_with_an_adapter_goes_through_the_modules_alone(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "one", tiny_llama)
    adapters = list(read_adapters([f"one={adapter}"]).values())
    stage = load_stage(tiny_llama, range(2), torch.float32, "cpu", adapters, "auto")
    assert isinstance(stage, TorchStage)
    computed = counted(monkeypatch)
    for own, other in zip(answers(stage), answers(load(tiny_llama, range(2), torch.float32)), strict=True):
        assert torch.equal(own, other)
    linears = [each for each in stage._model.base_model.layers[0].modules() if isinstance(each, NativeLinear)]
    most = min(map(most_tokens, linears))
    taken = [wave for wave in WAVES if sum(end - first for _, first, end, _ in wave) <= most]
    assert [layers for layers, _ in computed] == [2] * 2 * len(taken)
    tokens, chunk = torch.arange(30), Chunk(0, 30, torch.arange(8), False)
    plain = stage.forward(tokens, [chunk], stage.make_kv(8, BLOCK)).activations["hidden"]
    del computed[:]
    named = replace(chunk, adapter="one")
    adapted = stage.forward(tokens, [named], stage.make_kv(8, BLOCK)).activations["hidden"]
    assert not computed
    assert (adapted - plain).abs().max() > 0.05


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("layers", [range(4, 6), range(5, 6)])
def test_the_last_layer_still_leaves_out_what_nobody_wants(
    layers: range, wanted: bool, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = load(tiny_llama, layers, torch.bfloat16)
    computed = counted(monkeypatch)
    data = {"hidden": torch.zeros(16, 64, dtype=torch.bfloat16)}
    stage.forward(data, [Chunk(0, 16, torch.arange(20), wanted)], stage.make_kv(40, BLOCK))
    assert computed == [(len(layers), int(wanted))]
    data = {"hidden": torch.zeros(1, 64, dtype=torch.bfloat16)}
    stage.forward(data, [Chunk(0, 1, torch.arange(20), True)], stage.make_kv(40, BLOCK))
    assert computed[-1] == (len(layers), 1)


def test_the_kernel_has_the_same_fields() -> None:
    """``decoder_layers.cpp`` asserts the same numbers."""
    assert ctypes.sizeof(_DecoderLayer) == 44 * 8
    assert ctypes.sizeof(_Wave) == 19 * 8


def test_layers_whose_norms_differ_stay(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has one epsilon for both."""
    norm = LlamaDecoderLayer.__init__

    def other(self: LlamaDecoderLayer, *given: Any, **named: Any) -> None:
        norm(self, *given, **named)
        self.input_layernorm.variance_epsilon *= 2

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", other)
    stage = load(tiny_llama, range(2), torch.float32)
    assert not any(map(is_native, stage._model.base_model.layers[:2]))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_slices_of_rows_are_bit_for_bit_one(
    family: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers that are all packed, where a CPU multiplies bfloat16; one of two requests has tokens before it."""
    stage = load(make_model(tmp_path / "packed", family, intermediate_size=128), range(4, 6), torch.bfloat16)
    block, lengths = 16, (31, 97, 128, 129, 257, 300, 600, 1300)
    hidden = torch.randn(2 * max(lengths), 64, generator=torch.Generator().manual_seed(3)).bfloat16()

    def answers_of(count: int) -> list[torch.Tensor]:
        kv, split = stage.make_kv(200, block), count // 3 + 1
        first, second = torch.arange(100), torch.arange(100, 200)
        stage.forward({"hidden": hidden[:20]}, [Chunk(0, 20, first, False)], kv)
        wave = [Chunk(20, split, first, True), Chunk(0, count - split, second, True)]
        logits = stage.forward({"hidden": hidden[:count]}, wave, kv).logits
        assert logits is not None
        return [logits, *(pool for layer in stage.layers for pool in kv.pools(layer))]

    with in_threads(threads):
        at_once = [answers_of(count) for count in lengths]
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    with in_threads(1):
        for count, own in zip(lengths, at_once, strict=True):
            for one, other in zip(own, answers_of(count), strict=True):
                assert torch.equal(one, other), count
