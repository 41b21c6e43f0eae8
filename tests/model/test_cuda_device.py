"""Waves on a GPU: what is asked of ``torch.cuda``, and that no step of a forward needs a number from the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model import cuda_device, wave_layout
from wavepp_worker.model.cuda_device import CudaDevice, to_device
from wavepp_worker.model.stage import Chunk, MeasuredCompletion
from wavepp_worker.model.torch_stage import TorchStage

from tests.support.fake_cuda import GPU, FakeCuda

TOKENS = torch.arange(20, 29)
CHUNKS = [Chunk(4, 3, torch.tensor([2, 0]), True), Chunk(0, 6, torch.tensor([3, 1]), False)]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_what_comes_from_the_host_is_page_locked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """From other memory the host would wait until all that is queued before has ended."""
    asked: list[Any] = []
    tensor = torch.arange(3)
    assert to_device(tensor, torch.device("cpu")) is tensor
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append("pin") or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *args, **kwargs: asked.append((args, kwargs)) or self
    )
    to_device(tensor, GPU)
    assert asked == ["pin", ((GPU,), {"non_blocking": True})]


def test_copies_have_streams_of_their_own_and_wait_for_no_more_than_they_need(cuda: FakeCuda) -> None:
    device = CudaDevice(GPU)
    came = device.bring(torch.arange(3))
    begun = device.begin()
    cuda.now = 40.0
    copies, done = device.end(begun, {"hidden": came}, stays=False)
    assert cuda.calls == [
        ("to device", "arriving"),
        ("wait for arriving", "compute"),
        ("keep", "compute"),
        ("moment", "compute"),
        ("moment", "compute"),
        ("wait for a moment of compute", "leaving"),
        ("to host", "leaving"),
        ("keep", "leaving"),
        ("moment", "leaving"),
    ]
    assert copies["hidden"].tolist() == [0, 1, 2]
    assert done.seconds() == 0.04


def test_what_is_read_on_the_device_stays_there(cuda: FakeCuda) -> None:
    """It can be sent from there as soon as the wave has ended, and what came that way needs no copy either."""
    device, computed = CudaDevice(torch.device("cpu")), torch.arange(3)
    begun = device.begin()
    cuda.now, cuda.ended = 40.0, True
    kept, done = device.end(begun, {"hidden": device.bring(computed)}, stays=True)
    assert kept["hidden"] is computed
    done.wait(0.0)
    assert done.seconds() == 0.04
    assert cuda.calls == [("moment", "compute"), ("moment", "compute")]


def test_a_wave_is_waited_for_until_its_copies_are_there(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(GPU)
    _, done = device.end(device.begin(), {}, stays=False)
    assert isinstance(done, MeasuredCompletion)
    assert not done.over()
    with pytest.raises(StepTimeout, match="the GPU has not ended a wave after 0 s"):
        done.wait(0.0)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        cuda.ended = len(looks) == 3

    monkeypatch.setattr(cuda_device.time, "sleep", sleep)
    done.wait(60.0)
    assert len(looks) == 3
    assert done.over()


def test_a_stage_on_a_gpu_answers_before_it_has_computed(
    tiny_llama: Path, stages: Callable, cuda: FakeCuda
) -> None:
    """The whole of a wave comes back by one copy, and the host is told when it is there."""
    first, last = stages(tiny_llama, (2, 6))
    expected = [first.forward(TOKENS, CHUNKS, first.make_kv(4, 4))]
    expected.append(last.forward(expected[0].activations, CHUNKS, last.make_kv(4, 4)))
    data: Any = TOKENS
    for stage, wanted in zip((first, last), expected, strict=True):
        on_gpu = copy.copy(stage)
        cuda._names = iter(("arriving", "leaving"))
        on_gpu._gpu = CudaDevice(GPU)
        cuda.calls.clear()
        output = on_gpu.forward(data, CHUNKS, stage.make_kv(4, 4))
        assert isinstance(output.done, MeasuredCompletion)
        assert output.seconds is None
        assert [call for call, _ in cuda.calls].count("to host") == 1
        assert output.activations.keys() == wanted.activations.keys()
        if wanted.logits is not None:
            assert torch.equal(output.logits, wanted.logits)
        data = output.activations


def test_a_stage_whose_activations_stay_copies_its_logits_alone(
    tiny_llama: Path, stages: Callable, cuda: FakeCuda
) -> None:
    data: Any = TOKENS
    for stage, copies in zip(stages(tiny_llama, (2, 6)), (0, 1), strict=True):
        on_gpu = copy.copy(stage)
        on_gpu.activations_stay = True
        cuda._names = iter(("arriving", "leaving"))
        on_gpu._gpu = CudaDevice(GPU)
        cuda.calls.clear()
        data = on_gpu.forward(data, CHUNKS, stage.make_kv(4, 4)).activations
        assert [call for call, _ in cuda.calls].count("to host") == copies


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_no_step_of_a_forward_needs_a_number_from_the_device(
    family: str, tiny_model: Callable, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device without numbers each raises; and all that goes there goes by the way that does not wait."""
    stage = stages(tiny_model(family), (6,))[0]
    nowhere: TorchStage = copy.copy(stage)
    nowhere._model = copy.deepcopy(stage._model).to("meta", torch.bfloat16)
    nowhere.device, nowhere.dtype = torch.device("meta"), torch.bfloat16
    nowhere._in_place = frozenset()
    brought: list[torch.Tensor] = []

    def bring(tensor: torch.Tensor, device: torch.device = nowhere.device) -> torch.Tensor:
        brought.append(tensor)
        return torch.empty_like(tensor, device=device)

    monkeypatch.setattr(nowhere, "_brought", bring)
    monkeypatch.setattr(wave_layout, "to_device", bring)
    own = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        there = own(self, *args, **kwargs)
        assert there.device == self.device, "copied on a way that waits for the device"
        return there

    monkeypatch.setattr(torch.Tensor, "to", to)
    for chunks in (CHUNKS, [Chunk(4, 1, torch.tensor([2, 0]), True), Chunk(2, 1, torch.tensor([1]), True)]):
        tokens = TOKENS[: sum(chunk.length for chunk in chunks)]
        brought.clear()
        logits = nowhere.forward(tokens, chunks, nowhere.make_kv(4, 4)).logits
        assert logits.shape == (sum(chunk.wants_logits for chunk in chunks), 300)
        assert len(brought) <= 2 + len(nowhere.make_kv(4, 4).spans), (
            "token ids, slots, masks of decode; not by layer"
        )
