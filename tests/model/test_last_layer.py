"""The last layer computes for the tokens whose logits are wanted, keeps the KV of all, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, LlamaConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from wavepp_worker.model.cpu.fused_decoder_layers import FusedDecoderLayers
from wavepp_worker.model.kv.wave_layout import WaveLayout
from wavepp_worker.model.last_layer import can_be_trimmed
from wavepp_worker.model.layer_calls import layers_noted
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.model.torch_stage import TorchStage

FAMILIES = ["llama", "mistral", "qwen3_moe", "deepseek_v3", "gemma2"]
"""The last computes in another way, and for all tokens."""
FORMS = [(torch.float32, "auto"), (torch.bfloat16, "auto"), (torch.float32, "fp8")]
"""Attention of torch over gathered pages, our kernel's in place, and rows that are bytes."""
BLOCK = 4


def prompt(length: int) -> torch.Tensor:
    return torch.randint(0, 297, (length,), generator=torch.Generator().manual_seed(length))


def waves(stage: TorchStage) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the ends of prompts, one of several chunks, among others that go on; and the last layer's KV."""
    kv = stage.make_kv(40, BLOCK)
    prompts = [prompt(n) for n in (13, 30, 5)]
    tables = [torch.arange(first, first + 8) for first in (0, 10, 20)]
    rows = []
    for parts in (((0, 0, 13), (1, 0, 9)), ((1, 9, 21), (2, 0, 4)), ((1, 21, 30), (2, 4, 5)), ((2, 0, 2),)):
        chunks = [Chunk(a, b - a, tables[n], b == len(prompts[n])) for n, a, b in parts]
        logits = stage.forward(torch.cat([prompts[n][a:b] for n, a, b in parts]), chunks, kv).logits
        assert logits is not None
        assert len(logits) == sum(chunk.wants_logits for chunk in chunks)
        rows.append(logits)
    pools = [pool.float().flatten() for pool in kv.pools(stage.layers.stop - 1)]
    return torch.cat(rows), torch.cat(pools)


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_and_kv_are_those_of_a_layer_that_computes_all(
    family: str,
    dtype: torch.dtype,
    kv_dtype: str,
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = load_stage(tiny_model(family), range(6), dtype, "cpu", (), kv_dtype)
    logits, kv = waves(stage)
    monkeypatch.setattr(WaveLayout, "trimmed", False)
    whole, whole_kv = waves(stage)
    assert torch.equal(kv, whole_kv)
    assert torch.allclose(logits, whole, atol=1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_for_no_more_tokens_than_are_wanted(
    dtype: torch.dtype, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few tokens of the layer before would be computed in one call.
    monkeypatch.setattr(FusedDecoderLayers, "_most_tokens", lambda *_: 0)
    stage = load_stage(tiny_llama, range(3, 6), dtype, "cpu")
    assert isinstance(stage, TorchStage)
    seen: dict[str, list[int]] = {}

    def count(name: str, part: nn.Module) -> None:
        part.register_forward_hook(lambda _, given, __: seen.setdefault(name, []).append(given[0].shape[-2]))

    layers = stage._model.base_model.layers
    count("before", layers[4].mlp)
    count("last", layers[5].mlp)
    count("projected", layers[5].self_attn.o_proj)
    kv, hidden = stage.make_kv(20, BLOCK), torch.randn(12, 64).to(dtype)
    tables = torch.arange(0, 4), torch.arange(4, 8), torch.arange(8, 12)
    chunks = [
        Chunk(0, 4, tables[0], False),
        Chunk(0, 5, tables[1], True),
        Chunk(0, 3, tables[2], True),
    ]
    stage.forward({"hidden": hidden}, chunks, kv)
    stage.forward({"hidden": hidden[:4]}, [Chunk(4, 4, tables[0], False)], kv)
    assert (seen["before"], seen["last"]) == ([12, 4], [2])
    if dtype == torch.bfloat16 and stage._in_place:
        assert seen["projected"] == [2]


def test_only_a_layer_that_is_known_and_used_once_can_be_trimmed() -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1}

    def found(layer: Any, normed: Callable[[Any, torch.Tensor], torch.Tensor]) -> bool:
        """``normed``: what a model whose last layer that is puts through its norm."""
        norm = nn.Identity()
        layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
        layers = nn.ModuleList([layer])
        with layers_noted(layers, norm) as calls:
            norm(normed(partial(layer, position_embeddings=None), torch.zeros(1, 2, 16)))
        return can_be_trimmed(layers, calls)

    llama = LlamaDecoderLayer(LlamaConfig(**sizes, num_hidden_layers=1), 0)
    assert found(llama, lambda layer, x: layer(x))
    assert not found(llama, lambda layer, x: layer(layer(x)))
    assert not found(llama, lambda layer, x: layer(x) + x)
    assert not found(
        Gemma2DecoderLayer(Gemma2Config(**sizes, num_hidden_layers=1, head_dim=16), 0),
        lambda layer, x: layer(x),
    )
