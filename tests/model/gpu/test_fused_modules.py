"""Elementwise chains in fewer kernels, as on a GPU, over CPU tensors."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from wavepp_worker.model.gpu.fused_modules import fuse_on_gpu, is_gpu
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.stage import Chunk

from tests.support.fake_rotary import Rotary, load_as_on_gpu, rotary
from tests.support.lora_adapters import ATTENTION, DENSE, make_adapter, merge
from tests.support.nowhere import Nowhere

TABLES = torch.arange(24).view(3, 8)
CUTS = [
    [(0, 0, 5), (1, 0, 3)],
    [(0, 5, 9), (1, 3, 4), (2, 0, 31)],
    [(0, 9, 31), (1, 4, 12)],
    [(0, 31, 32), (1, 12, 13), (2, 31, 32)],
]
"""Of three prompts: chunks with prefixes of several lengths beside none, then a token of each."""
CHAINS = (
    "add",
    "cat",
    "cos",
    "mean",
    "mul",
    "mul_",
    "neg",
    "pow",
    "rms_norm",
    "rsqrt",
    "silu",
    "silu_",
    "sin",
)
"""Operations between products, each a launch. What only converts to another dtype is not counted."""


def waves() -> list[tuple[torch.Tensor, list[Chunk]]]:
    drawn = torch.randint(0, 300, (3, 32), generator=torch.Generator().manual_seed(1))
    return [
        (
            torch.cat([drawn[n, start:end] for n, start, end in wave]),
            [Chunk(start, end - start, TABLES[n], True) for n, start, end in wave],
        )
        for wave in CUTS
    ]


class Launched(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "rotated"),
    [
        ("llama", 6),
        ("qwen3", 6),
        ("tied", 6),
        ("mistral", 6),
        ("qwen3_moe", 6),
        ("gemma2", 0),
        ("deepseek_v3", 0),
    ],
)
def test_a_stage_computes_what_it_did(
    family: str,
    rotated: int,
    tiny_model: Callable,
    stages: Callable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those whose code is another keep it: Gemma's norms, and what has its own rotation or latents."""
    directory = tiny_model(family)
    (plain,) = stages(directory, (6,), by_torch=True)
    fake = Rotary()
    caplog.set_level(logging.INFO)
    stage = load_as_on_gpu(rotary(monkeypatch, fake), directory, range(6), torch.float32, "cpu")
    others = "" if rotated else ", by transformers in the others"
    assert f"rotated by FlashInfer in {rotated} of 6 layers{others}" in caplog.text
    fake.calls = 0
    kv, usual = stage.make_kv(24, 8), plain.make_kv(24, 8)
    for tokens, chunks in waves():
        got, want = stage.forward(tokens, chunks, kv).logits, plain.forward(tokens, chunks, usual).logits
        assert (got - want).abs().max() < 1e-4
    assert fake.calls == rotated * len(CUTS)


def test_without_the_kernel_transformers_rotates(
    tiny_model: Callable,
    plain: Callable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = tiny_model("llama")
    tokens = torch.randint(0, 300, (20,), generator=torch.Generator().manual_seed(2))
    caplog.set_level(logging.INFO)
    for found in (None, rotary(monkeypatch, Rotary(pairs=True))):
        caplog.clear()
        stage = load_as_on_gpu(found, directory, range(6), torch.float32, "cpu")
        row = stage.forward(tokens, [Chunk(0, 20, TABLES[0], True)], stage.make_kv(24, 8)).logits[0]
        assert torch.allclose(row, plain(directory, tokens)[-1], atol=5e-4)
        assert "torch's rms_norm in 13 modules, gated activations in place in 6" in caplog.text
        assert ("FlashInfer is not installed" in caplog.text) == (found is None)


def test_in_16_bits_it_is_as_near_to_float32_as_transformers(
    tiny_model: Callable, plain: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tiny_model("qwen3")
    tokens = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(3))
    narrow = torch.bfloat16
    found = rotary(monkeypatch, Rotary(), narrow)
    stage = load_as_on_gpu(found, directory, range(6), narrow, "cpu")
    row = stage.forward(tokens, [Chunk(0, 60, TABLES[0], True)], stage.make_kv(24, 8)).logits[0]
    truth = plain(directory, tokens)[-1]
    own = (plain(directory, tokens, narrow)[-1] - truth).abs().mean()
    assert (row - truth).abs().mean() <= 1.5 * own


def test_adapters_add_to_what_is_rotated_and_gated(
    tiny_model: Callable, plain: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the model does into which the adapter is merged; requests without one are as before."""
    directory = tiny_model("llama")
    path = make_adapter(tmp_path / "adapter", directory, modules=(*ATTENTION, *DENSE))
    merged = merge(tmp_path / "merged", directory, path)
    adapters = list(read_adapters([f"a={path}"]).values())
    found = rotary(monkeypatch, Rotary())
    stage = load_as_on_gpu(found, directory, range(6), torch.float32, "cpu", adapters)
    tokens = torch.randint(0, 300, (24,), generator=torch.Generator().manual_seed(4))
    chunks = [Chunk(0, 24, TABLES[0], True, adapter="a"), Chunk(0, 24, TABLES[1], True)]
    rows = stage.forward(tokens.repeat(2), chunks, stage.make_kv(24, 8)).logits
    for row, model in zip(rows, (merged, directory), strict=True):
        assert torch.allclose(row, plain(model, tokens)[-1], atol=5e-4)


def test_what_lies_between_products_is_7_launches_of_a_layer_in_place_of_26(
    tiny_model: Callable, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two norms, a rotary embedding, a gated activation and two sums of each of six layers, and the last norm."""
    directory = tiny_model("llama")
    (before,) = stages(directory, (6,), by_torch=True)
    found = rotary(monkeypatch, Rotary())
    after = load_as_on_gpu(found, directory, range(6), torch.float32, "cpu")
    rotated: list[Any] = []
    monkeypatch.setattr(found, "_apply", lambda *given, **_: rotated.append(given))
    counts = []
    for stage in (before, after):
        kv, (tokens, chunks) = stage.make_kv(24, 8), waves()[0]
        with Launched() as seen:
            stage.forward(tokens, chunks, kv)
        counts.append(sum(seen.kernels[name] for name in CHAINS))
    of_a_wave = 13
    assert counts[0] == 6 * (2 * 6 + 10 + 2 + 2) + of_a_wave, "the last norm, and angles"
    assert counts[1] + len(rotated) == 6 * (2 + 1 + 2 + 2) + of_a_wave - 5 + 1, (
        "of a norm five less; a table more"
    )


def test_only_what_is_known_is_changed() -> None:
    def changed(module: torch.nn.Module, dtype: torch.dtype = torch.float32) -> bool:
        model = torch.nn.Sequential(module)
        model.dtype = dtype  # type: ignore[assignment]
        fuse_on_gpu(model, {}, None)
        return "forward" in vars(module)

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2}
    assert changed(LlamaRMSNorm(8))
    assert not changed(LlamaRMSNorm(8), torch.bfloat16), "it promotes"
    assert not changed(Gemma2RMSNorm(8)), "its weight is less by one"
    assert changed(LlamaMLP(LlamaConfig(**sizes)))
    assert not changed(LlamaMLP(LlamaConfig(**sizes, hidden_act="gelu")))


def test_it_needs_no_number_of_the_device(tiny_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rotary(monkeypatch, Rotary())
    stage = load_as_on_gpu(made, tiny_model("qwen3"), range(6), torch.float32, "cpu")
    monkeypatch.setattr(made, "_apply", lambda *_, **__: None)
    nowhere = Nowhere(stage, monkeypatch)
    kv = nowhere.stage.make_kv(24, 8)
    for tokens, chunks in waves():
        nowhere.forward(tokens, chunks, kv)


def test_where_fewer_launches_are_better() -> None:
    assert is_gpu(torch.device("cuda:1"))
    assert not is_gpu(torch.device("cpu"))
