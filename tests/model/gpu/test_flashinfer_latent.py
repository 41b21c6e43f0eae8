"""Latents that are read in place on a GPU, with FlashInfer's documentation in place of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.model import torch_stage
from wavepp_worker.model.attention.latent_absorption import LatentSizes
from wavepp_worker.model.gpu import flashinfer_latent
from wavepp_worker.model.gpu.flashinfer_plans import AHEAD
from wavepp_worker.model.gpu.paged_kernel_check import latents_agree_with_torch

from tests.model.gpu.test_flashinfer_attention import load, waves
from tests.support.fake_flashinfer import Behind
from tests.support.tiny_models import make_model

SIZES = LatentSizes(heads=4, rank=16, rotary=8, plain=8, value=8)
CPU = torch.device("cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Behind:
    return Behind(monkeypatch)


@pytest.fixture
def of_tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_latent, "_RANK", SIZES.rank)
    monkeypatch.setattr(flashinfer_latent, "_ROTARY", SIZES.rotary)


@pytest.mark.usefixtures("of_tiny_models")
@pytest.mark.parametrize("pays", ["always", "by turns", "never"])
@pytest.mark.parametrize("kind", ["deepseek_v3", "deepseek_v2", "glm4_moe_lite", "youtu", "minicpm3"])
def test_a_wave_gives_the_same_logits_whether_latents_are_read_in_place_or_not(
    kind: str,
    pays: str,
    device: Behind,
    tmp_path: Path,
    stages: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From one wave to the next, in the same pools."""
    directory = make_model(tmp_path, "deepseek_v3", model_type=kind)
    (plain,) = stages(directory, (6,), by_torch=True)
    stage = load(directory, device.flashinfer(latent=True))
    assert stage.flashinfer is not None
    assert stage.flashinfer.taken
    device.plans, decided = 0, list[bool]()

    def absorbing_pays(*_: Any) -> bool:
        decided.append({"always": True, "by turns": len(decided) % 2 == 0, "never": False}[pays])
        return decided[-1]

    monkeypatch.setattr(torch_stage, "absorbing_pays", absorbing_pays)
    kv, usual = stage.make_kv(12, 8), plain.make_kv(12, 8)
    for tokens, chunks in waves():
        got, want = stage.forward(tokens, chunks, kv).logits, plain.forward(tokens, chunks, usual).logits
        assert (got - want).abs().max() < 1e-4
    assert device.plans == sum(decided)


@pytest.mark.usefixtures("of_tiny_models")
def test_it_is_taken_if_it_computes_what_torch_does(device: Behind, caplog: pytest.LogCaptureFixture) -> None:
    good = device.latent()
    assert not good.taken
    assert good.takes(SIZES)
    made = device.wrappers
    assert good.takes(SIZES)
    assert (good.taken, device.wrappers) == (True, made), "asked once"
    assert not caplog.messages
    assert not good.takes(LatentSizes(heads=4, rank=32, rotary=8, plain=8, value=8)), "there is no kernel"
    device.ignores_windows = True
    other = device.latent()
    assert not other.takes(SIZES)
    assert not other.taken
    assert caplog.messages == [
        "FlashInfer is installed but not used for latents of 16: it computes something else than torch"
    ]
    caplog.clear()
    broken = device.latent()
    broken._wrappers._make_wrapper = lambda: 1 / 0
    assert not broken.takes(SIZES)
    assert "latents of 16: division by zero" in caplog.text


def test_waves_that_are_on_their_way_are_computed_as_they_were_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Behind(monkeypatch, lag=1000)
    latent, asked = device.latent(torch.bfloat16), []

    def read(*given: Any) -> torch.Tensor:
        asked.append(latent.read(*given))
        if len(asked) == 10:
            device.finish()
        return asked[-1]

    assert latents_agree_with_torch(read, SIZES, torch.bfloat16, CPU)
    assert device.wrappers == 2 * AHEAD, "of each size of blocks"


@pytest.mark.usefixtures("of_tiny_models")
def test_it_is_used_where_a_few_tokens_read_many(
    device: Behind, tiny_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = load(tiny_model("deepseek_v3"), device.flashinfer(latent=True))
    (sizes,) = set(stage._absorbing.values())
    assert sizes.rank == SIZES.rank
    asked: list[Any] = []
    monkeypatch.setattr(torch_stage, "absorbing_pays", lambda *given: asked.append(given) or False)
    tokens, chunks = waves()[1]
    stage.forward(tokens[:4], chunks[:1], stage.make_kv(12, 8))
    assert asked == [([5], [4], sizes)]
