"""Attention over pages in place on a GPU, with FlashInfer's documentation in place of its kernels."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model import torch_loader
from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.gpu import flashinfer_attention, flashinfer_plans
from wavepp_worker.model.gpu.flashinfer_attention import FlashInfer, find_flashinfer
from wavepp_worker.model.gpu.paged_kernel_check import Trial, agrees_with_torch
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.fake_flashinfer import Behind
from tests.support.nowhere import Nowhere

TABLES = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
HEADS = Heads(queries=4, keys=2, dim=16)
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def waves() -> list[tuple[torch.Tensor, list[Chunk]]]:
    """Three prompts in chunks, with prefixes of several lengths beside none, then a token of each."""
    drawn = torch.randint(0, 300, (3, 32), generator=torch.Generator().manual_seed(1))
    cuts = [
        [(0, 0, 5), (1, 0, 3)],
        [(0, 5, 9), (1, 3, 4), (2, 0, 31)],
        [(0, 9, 31), (1, 4, 12)],
        [(0, 31, 32), (1, 12, 13), (2, 31, 32)],
    ]
    return [
        (
            torch.cat([drawn[n, start:end] for n, start, end in wave]),
            [Chunk(start, end - start, TABLES[n], True) for n, start, end in wave],
        )
        for wave in cuts
    ]


def load(directory: Path, flashinfer: FlashInfer) -> Any:
    """All of a model in one stage, without this project's own kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_library, "library", lambda: None)
        patch.setattr(torch_loader, "find_flashinfer", lambda *_: flashinfer)
        return load_stage(directory, range(6), torch.float32, "cpu")


@pytest.mark.parametrize(
    ("family", "layers", "kinds"),
    [("llama", 6, 1), ("mistral", 6, 1), ("gpt_oss", 0, 0), ("gemma3_text", 6, 2), ("deepseek_v3", 0, 0)],
)
def test_a_wave_gives_the_same_logits_with_a_plan_for_each_kind_of_layers(
    family: str,
    layers: int,
    kinds: int,
    tiny_model: Callable,
    stages: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Full and sliding attention; sinks and latents, which these kernels do not have, go another way."""
    directory = tiny_model(family)
    (plain,) = stages(directory, (6,), by_torch=True)
    device = Behind(monkeypatch)
    stage = load(directory, device.flashinfer())
    assert (stage.flashinfer is not None) == bool(layers)
    device.plans = 0
    kv, usual = stage.make_kv(12, 8), plain.make_kv(12, 8)
    for tokens, chunks in waves():
        got, want = stage.forward(tokens, chunks, kv).logits, plain.forward(tokens, chunks, usual).logits
        assert (got - want).abs().max() < 1e-4
    assert device.plans == kinds * len(waves())


def test_it_needs_no_number_of_the_device(tiny_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """All a wave needs there arrives by the copy that brings everything else."""
    device = Behind(monkeypatch)
    made = device.flashinfer()
    nowhere = Nowhere(load(tiny_model("mistral"), made), monkeypatch)
    monkeypatch.setattr(
        made._wrappers, "_make_wrapper", lambda: SimpleNamespace(plan=planned, run=lambda q, pools: q)
    )
    kv = nowhere.stage.make_kv(12, 8)

    def planned(*given: Any, **_: Any) -> None:
        queries, blocks, indices, last = given[:4]
        assert {queries.device, blocks.device, last.device} == {CPU}
        assert indices.device == nowhere.stage.device

    for tokens, chunks in waves():
        nowhere.brought.clear()
        nowhere.forward(tokens, chunks, kv)
        assert len(nowhere.brought) == 2, "token ids, and all else"


@pytest.mark.parametrize("window", [None, 20])
def test_a_plan_that_is_on_its_way_is_not_written_over(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Behind(monkeypatch, lag=1000)
    flashinfer = device.flashinfer()
    trials = [Trial(number, 16, HEADS, torch.float32) for number in range(9)]
    for trial in trials:
        trial.bring(CPU)
    answers = [trial.ask(flashinfer.attend, window) for trial in trials]
    device.finish()
    for trial, answer in zip(trials, answers, strict=True):
        assert (answer - trial.expected(window)).abs().max() < 1e-5
    assert device.wrappers == flashinfer_plans.AHEAD


def test_a_device_that_takes_no_plan_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_plans, "PLAN_SECONDS", 0.01)
    device = Behind(monkeypatch, lag=1000)
    flashinfer = device.flashinfer()
    monkeypatch.setattr(device, "work", lambda: False)
    with pytest.raises(StepTimeout, match="not taken the plan of a wave"):
        agrees_with_torch(flashinfer.attend, HEADS, None, torch.float32, CPU)


def test_what_computes_something_else_or_fails_is_not_taken_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = Behind(monkeypatch)
    good = device.flashinfer()
    assert not good.taken
    assert good.takes(HEADS, None)
    assert good.takes(HEADS, 20)
    made = device.wrappers
    assert good.takes(HEADS, 20)
    assert (good.taken, device.wrappers) == (True, made), "asked once"
    assert not caplog.messages

    device.ignores_windows = True
    other = device.flashinfer()
    assert other.takes(HEADS, None)
    assert not other.takes(HEADS, 20)
    assert caplog.messages == [
        "FlashInfer is installed but not used for 4 heads of queries, 2 of keys and dim 16: it computes something else "
        "than torch"
    ]
    caplog.clear()
    broken = device.flashinfer()
    monkeypatch.setattr(broken._wrappers, "_make_wrapper", lambda: 1 / 0)
    assert not broken.takes(HEADS, None)
    assert "dim 16: division by zero" in caplog.text
    assert not broken.taken
    assert not good.takes(Heads(4, 2, 24), None), "there are kernels of few dims"
    assert not good.takes(Heads(4, 3, 16), None)


def test_it_is_looked_for_where_it_may_have_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_flashinfer(GPU, torch.bfloat16) is None, "not installed"
    spec = importlib.machinery.ModuleSpec("flashinfer", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    assert find_flashinfer(CPU, torch.bfloat16) is None
    assert find_flashinfer(GPU, torch.float32) is None
    assert not caplog.messages
    assert find_flashinfer(GPU, torch.bfloat16) is None
    assert "cannot be used: " in caplog.text
    made: list[tuple[Any, ...]] = []
    wrapper = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=lambda *given: made.append(given))
    monkeypatch.setitem(sys.modules, "flashinfer", wrapper)
    monkeypatch.setattr(torch, "zeros", lambda *size, **_: size)
    found = find_flashinfer(GPU, torch.bfloat16)
    assert found is not None
    found._wrappers._make_wrapper()
    workspace = (flashinfer_attention._WORKSPACE_BYTES,)
    assert made == [(workspace, "NHD")]
    assert found.latent is None
    wrapper.mla = SimpleNamespace(BatchMLAPagedAttentionWrapper=lambda *given: made.append(given))
    found = find_flashinfer(GPU, torch.bfloat16)
    assert found is not None
    assert found.latent is not None
    found.latent._wrappers._make_wrapper()
    assert made[1:] == [(workspace,)]
