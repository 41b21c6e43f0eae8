"""Waves on a GPU: what is asked of ``torch.cuda``, and that no step of a forward has the host wait for the device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.device import cuda_device
from wavepp_worker.model.device.cuda_device import CudaDevice, to_device
from wavepp_worker.model.stage import Chunk, ChunkState, MeasuredCompletion
from wavepp_worker.model.torch_stage import HIDDEN, PICKED, TorchStage

from tests.support.fake_cuda import GPU, FakeCuda
from tests.support.nowhere import Nowhere

TOKENS = torch.arange(20, 29)
DECODED = [Chunk(4, 1, torch.tensor([2, 0]), True), Chunk(2, 1, torch.tensor([1]), True)]
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
    assert cuda.now > 40.0
    assert done.seconds() == 0.04, "that of its kernels: copies go on beside those of the next wave"


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
    first, last = stages(tiny_llama, (2, 6), by_torch=True)
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
    for stage, copies in zip(stages(tiny_llama, (2, 6), by_torch=True), (0, 1), strict=True):
        on_gpu = copy.copy(stage)
        on_gpu.activations_stay = True
        cuda._names = iter(("arriving", "leaving"))
        on_gpu._gpu = CudaDevice(GPU)
        cuda.calls.clear()
        data = on_gpu.forward(data, CHUNKS, stage.make_kv(4, 4)).activations
        assert [call for call, _ in cuda.calls].count("to host") == copies


@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "glm_moe_dsa", "qwen3_next", "kimi_linear"],
)
def test_no_step_of_a_forward_waits_for_the_device(
    family: str, tiny_model: Callable, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a wave of chunks and one of decode tokens, on a stage at each end of the model."""
    for stage in stages(tiny_model(family), (2, 6), by_torch=True):
        nowhere = Nowhere(stage, monkeypatch)
        for chunks in (CHUNKS, DECODED):
            tokens = sum(chunk.length for chunk in chunks)
            kv = nowhere.stage.make_kv(4, 4, 8)
            if stage.recurrent:
                chunks = [
                    dataclasses.replace(
                        each, state=ChunkState(n if each.start else None, n, {each.start + 1: 4 + n})
                    )
                    for n, each in enumerate(chunks)
                ]
            nowhere.brought.clear()
            nowhere.forward(_inputs(nowhere.stage, tokens), chunks, kv)
            lists = sum(1 for each in nowhere.brought if stage.recurrent and each.numel() <= len(chunks))
            assert len(nowhere.brought) - lists <= 3 + len(kv.spans) + len(chunks), (
                "inputs, slots, those of a request that its indexer reads, masks of decode; not by layer"
            )


def _inputs(stage: TorchStage, tokens: int) -> Any:
    if stage.layers.start == 0:
        return TOKENS[:tokens]
    hidden = torch.zeros(tokens, stage._model.config.hidden_size, dtype=torch.bfloat16)
    return {HIDDEN: hidden, PICKED: torch.zeros(tokens, 2, dtype=torch.int32)}


def test_a_step_that_waits_is_noticed(
    tiny_llama: Path, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test before this one shows nothing."""
    nowhere = Nowhere(stages(tiny_llama, (6,), by_torch=True)[0], monkeypatch)
    layer = nowhere.stage._model.base_model.layers[1]
    host = torch.zeros(1)
    for step in (
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.index_put((x > 0,), x.sum()),
        lambda x: x[host.long()],
        lambda x: x + host,
        lambda x: x.copy_(host),
        lambda x: host.to(x.device),
        lambda x: host.to(x.device, torch.bfloat16),
        lambda x: torch.tensor([1], device=x.device),
        lambda x: x.new_tensor([1]),
    ):

        def run(_: Any, taken: tuple[torch.Tensor, ...], step: Callable = step) -> None:
            step(taken[0][0])

        hook = layer.register_forward_pre_hook(run)
        with pytest.raises((AssertionError, RuntimeError)):
            nowhere.forward(TOKENS, CHUNKS, nowhere.stage.make_kv(4, 4))
        hook.remove()
    nowhere.forward(TOKENS, CHUNKS, nowhere.stage.make_kv(4, 4))
