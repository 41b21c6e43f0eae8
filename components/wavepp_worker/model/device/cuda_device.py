"""A stage's waves on a CUDA device, which computes behind the host: the host waits for nothing that is queued there.

Written after torch 2.13 and driven in tests by a fake of the calls to ``torch.cuda``; not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.stage import Activations

POLL_SECONDS = 0.0001
"""Between two looks at an event: torch's own wait for one has no bound."""


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on ``device``: to a GPU from page-locked memory, as the host would wait for all else before."""
    if device.type != "cuda":
        return tensor.to(device)
    # The allocator of such memory gives it to nobody else before the copy is done.
    return page_locked(tensor, device).to(device, non_blocking=True)


def page_locked(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor where copies to ``device`` need not wait for all else before."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def page_locked_bytes(size: int, device: torch.device) -> torch.Tensor:
    """Host memory, uint8 ``[size]``, that a GPU copies to and from while the host goes on."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in host memory; a GPU's is there once what is queued on the current stream is done."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return _copy_out(tensor)


def use_device(device: torch.device | None) -> None:
    """Have this thread ask CUDA for ``device`` where it names none, as events and libraries do.

    Each thread begins with the first GPU, of which that would take memory in the process of every rank.
    """
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)


def await_event(event: torch.cuda.Event, timeout: float, fault: str) -> None:
    """Return when the device is there.

    Raises:
        StepTimeout: it is not after so many seconds, which is the ``fault``.
    """
    limit = time.monotonic() + timeout
    while not event.query():
        if time.monotonic() > limit:
            raise StepTimeout(
                f"{fault} after {timeout:.0f} s, which is more than it may take; raise wave_timeout or lower "
                "max_num_batched_tokens"
            )
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class CudaWave:
    """Implements ``MeasuredCompletion``.

    Attributes:
        begun: when its first kernel could begin.
        ended: when its last kernel ended.
        copied: when what it computed was where it is read: in host memory, or still on the device.
    """

    begun: torch.cuda.Event
    ended: torch.cuda.Event
    copied: torch.cuda.Event

    def over(self) -> bool:
        return self.ended.query()

    def seconds(self) -> float:
        return self.begun.elapsed_time(self.ended) / 1000

    def wait(self, timeout: float) -> None:
        use_device(self.ended.device)
        await_event(self.copied, timeout, "the GPU has not ended a wave")


class CudaDevice:
    """Brings what a wave needs to a GPU, and what it computed back, beside the kernels of other waves.

    Kernels are queued on the current stream; each direction has one of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arriving = torch.cuda.Stream(device)
        self._leaving = torch.cuda.Stream(device)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device; kernels that are queued from now on find it there, as what is there already."""
        if tensor.device == self._device:
            return tensor
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._arriving):
            there = to_device(tensor, self._device)
        computing.wait_stream(self._arriving)
        # Its memory belongs to the other stream, which knows nothing of the kernels that read it.
        there.record_stream(computing)
        return there

    def begin(self) -> torch.cuda.Event:
        """What is queued from now on is the next wave."""
        return moment(torch.cuda.current_stream(self._device))

    def end(
        self, begun: torch.cuda.Event, computed: Mapping[str, torch.Tensor], stays: bool
    ) -> tuple[Activations, CudaWave]:
        """All of a wave is queued; returns what it computed, which may be read once the wave is waited for.

        ``stays``: it is read on the device; else it is copied to host memory.
        """
        ended = moment(torch.cuda.current_stream(self._device))
        if stays:
            return dict(computed), CudaWave(begun, ended, ended)
        self._leaving.wait_event(ended)
        copies = {}
        with torch.cuda.stream(self._leaving):
            for name, tensor in computed.items():
                copies[name] = _copy_out(tensor)
                tensor.record_stream(self._leaving)
        return copies, CudaWave(begun, ended, moment(self._leaving))


def moment(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """When a stream has done all that is queued on it now."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _copy_out(tensor: torch.Tensor) -> torch.Tensor:
    return _page_locked_like(tensor).copy_(tensor, non_blocking=True)


def _page_locked_like(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
