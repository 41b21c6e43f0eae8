"""The few calls to ``torch.cuda`` that a stage makes, over CPU tensors: nothing ends before the test says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from wavepp_worker.model.device import cuda_device

GPU = torch.device("cuda:0")
COPY_MILLISECONDS = 7.0
"""What each copy to host memory takes, on the device."""


class FakeCuda:
    """Stands in for ``torch.cuda``; ``streams`` are named in the order in which they are made, ``compute`` is there.

    Attributes:
        calls: what was asked for, with the stream that it was queued on.
        now: milliseconds on the device.
        ended: whether what was queued is over.
        used: the devices that threads were told to use.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *streams: str) -> None:
        self.calls: list[tuple[str, str]] = []
        self.now = 0.0
        self.ended = False
        self.used: list[torch.device] = []
        self._names = iter(streams or ("arriving", "leaving"))
        self._compute = _Stream(self, "compute")
        self._current = self._compute
        patch.setattr(torch.cuda, "Stream", lambda device: _Stream(self, next(self._names)))
        patch.setattr(torch.cuda, "Event", lambda enable_timing: _Event(self))
        patch.setattr(torch.cuda, "current_stream", lambda device: self._current)
        patch.setattr(torch.cuda, "set_device", self.used.append)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.note("keep", stream))
        patch.setattr(cuda_device, "to_device", self._to_device)
        patch.setattr(cuda_device, "_page_locked_like", self._page_locked)

    def note(self, call: str, stream: Any = None) -> None:
        self.calls.append((call, (stream or self._current).name))

    @contextlib.contextmanager
    def _on(self, stream: _Stream) -> Iterator[None]:
        self._current = stream
        try:
            yield
        finally:
            self._current = self._compute

    def _to_device(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.note("to device")
        return tensor.clone()

    def _page_locked(self, like: torch.Tensor) -> torch.Tensor:
        self.note("to host")
        self.now += COPY_MILLISECONDS
        return torch.empty(like.shape, dtype=like.dtype)


class _Stream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: _Stream) -> None:
        self._cuda.note(f"wait for {other.name}", self)

    def synchronize(self) -> None:
        self._cuda.note("synchronize", self)

    def wait_event(self, event: _Event) -> None:
        self._cuda.note(f"wait for a moment of {event.stream}", self)


class _Event:
    stream = "none"
    device = GPU

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def record(self, stream: _Stream) -> None:
        self.stream, self.at = stream.name, self._cuda.now
        self._cuda.note("moment", stream)

    def query(self) -> bool:
        return self._cuda.ended

    def elapsed_time(self, end: _Event) -> float:
        return end.at - self.at
