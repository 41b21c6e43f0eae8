"""Rotary embeddings by FlashInfer's kernel, with its documentation in its place."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.gpu.flashinfer_rotary import FlashInferRotary, find_rotary

from tests.support.fake_rotary import Rotary, rotary

HEADS = Heads(queries=4, keys=2, dim=16)
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def test_each_wave_is_rotated_by_its_own_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is made once for all layers, and anew for the next wave."""
    made = rotary(monkeypatch, Rotary())
    for tokens in (5, 5, 1, 9):
        angles = torch.randn(1, tokens, 8).repeat(1, 1, 2)
        cos, sin = angles.cos(), angles.sin()
        for _ in range(2):
            query, key = torch.randn(tokens, 4, 16), torch.randn(tokens, 2, 16)
            want = apply_rotary_pos_emb(query[None], key[None], cos, sin, unsqueeze_dim=2)
            made.rotate(query, key, cos, sin)
            assert torch.allclose(query, want[0][0], atol=1e-6)
            assert torch.allclose(key, want[1][0], atol=1e-6)
        assert made._tables[-1][0] is cos


def test_two_kinds_of_layers_of_a_wave_have_a_table_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rotary(monkeypatch, Rotary())
    angles = [(each.cos(), each.sin()) for each in torch.randn(2, 1, 5, 8).repeat(1, 1, 1, 2)]
    for cos, sin in angles * 2:
        query, key = torch.randn(5, 4, 16), torch.randn(5, 2, 16)
        want = apply_rotary_pos_emb(query[None], key[None], cos, sin, unsqueeze_dim=2)
        made.rotate(query, key, cos, sin)
        assert torch.allclose(query, want[0][0], atol=1e-6)
        tables = [table for _, table in made._tables]
    for cos, sin in angles:
        made.rotate(torch.randn(5, 4, 16), torch.randn(5, 2, 16), cos, sin)
    assert all(mine is was for (_, mine), was in zip(made._tables, tables, strict=True)), "made once"


def test_what_is_no_view_is_refused_rather_than_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rotary(monkeypatch, Rotary())
    spread = torch.randn(4, 5, 16).transpose(0, 1)
    with pytest.raises(RuntimeError, match="view"):
        made.rotate(spread, torch.randn(5, 2, 16), torch.ones(1, 5, 16), torch.zeros(1, 5, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_tried_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Rotary()
    made = rotary(monkeypatch, fake, dtype)
    assert made.takes(HEADS)
    calls = fake.calls
    assert calls
    assert made.takes(HEADS)
    assert fake.calls == calls
    assert not made.takes(Heads(4, 2, 24)), "there are kernels of few dims"
    assert fake.calls == calls


def test_what_rotates_otherwise_or_fails_is_not_taken_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = rotary(monkeypatch, Rotary(pairs=True))
    assert not other.takes(HEADS)
    assert caplog.messages == [
        "FlashInfer's rotary embedding is not used for 4 heads of queries, 2 of keys and dim 16: it computes something "
        "else than torch"
    ]
    caplog.clear()
    broken = FlashInferRotary(CPU, torch.float32, lambda *_, **__: 1 / 0)
    assert not broken.takes(HEADS)
    assert "dim 16: division by zero" in caplog.text


def scaled(heads: torch.Tensor) -> None:
    heads.mul_(1.01)


def many(heads: torch.Tensor) -> None:
    heads[200:] = 0


def last(heads: torch.Tensor) -> None:
    if len(heads) > 1:
        heads[-1, -1, -1] += 0.1


def some_head(heads: torch.Tensor) -> None:
    heads[:, 1] = 0


@pytest.mark.parametrize("spoils", [scaled, many, last, some_head])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_mistakes_are_seen(
    spoils: Callable[[torch.Tensor], None], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not rotary(monkeypatch, Rotary(spoils=spoils), dtype).takes(HEADS)


@pytest.mark.parametrize(("dim", "tokens"), [(64, 33_793), (128, 16_897), (256, 8_449)])
def test_a_trial_fills_a_gpu(dim: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100: blocks take eight numbers a thread, so that many tokens are a block to each place that it has."""
    card = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert FlashInferRotary(GPU, torch.bfloat16, lambda: None)._trials(dim)[-1] == tokens


def test_it_is_looked_for_where_it_may_have_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_rotary(GPU, torch.bfloat16) is None, "not installed"
    spec = importlib.machinery.ModuleSpec("flashinfer", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "flashinfer.rope", SimpleNamespace())
    assert find_rotary(CPU, torch.bfloat16) is None
    assert find_rotary(GPU, torch.float32) is None
    assert not caplog.messages
    assert find_rotary(GPU, torch.bfloat16) is None
    assert "cannot be used: " in caplog.text
    fake = Rotary()
    kernels = SimpleNamespace(apply_rope_with_cos_sin_cache_inplace=fake.apply)
    monkeypatch.setitem(sys.modules, "flashinfer.rope", kernels)
    found = find_rotary(GPU, torch.bfloat16)
    assert found is not None
    assert found._apply == fake.apply
