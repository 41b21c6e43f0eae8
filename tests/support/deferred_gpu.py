"""A GPU that computes behind the host, over CPU tensors: streams do what they are given later, in any order they allow.

``fake_cuda`` notes what is asked of ``torch.cuda``; this does it, so that whoever reads too early finds noise or what
was there before.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode
from wavepp_worker.model.device import cuda_device
from wavepp_worker.runtime.tiers import tier_store

GPU = torch.device("cuda:0")
NOISE = 0xEE
"""What every byte of new memory is."""
SPEEDS = (1, 8, 64)
"""Of streams: some mistakes show only if one is far behind another."""

COPIES = (torch.Tensor.copy_, torch.Tensor.index_copy_, torch.index_select)
"""What is queued where production code names a stream; all of them write memory that was there before."""
UNKNOWN = (
    torch.Tensor.clone,
    torch.Tensor.cpu,
    torch.Tensor.contiguous,
    torch.cat,
    torch.stack,
    torch.gather,
)
"""What would be queued, too, but nobody asks for yet."""


class DeferredGpu:
    """Stands in for ``torch.cuda`` until ``patch`` is undone. ``draw`` says what is done next, and when.

    Work on ``compute`` is given to it as functions. On every other stream it is calls to torch within ``deferred``.

    Attributes:
        compute: the stream that waves are queued on.
        current: the stream that this thread queues on.
        fault: what was wrong first; whoever looked at an event then may have taken it for a failed request.
    """

    def __init__(self, patch: pytest.MonkeyPatch, draw: random.Random) -> None:
        self.draw = draw
        self.fault: AssertionError | None = None
        self._streams: list[DeferredStream] = []
        self.compute = self.current = self._stream()
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.cuda, "Event", lambda enable_timing: DeferredEvent(self))
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(torch.cuda, "cudart", _page_lock_nothing)
        patch.setattr(torch.cuda, "check_error", lambda code: None)
        patch.setattr(cuda_device, "POLL_SECONDS", 0.0)
        # It would see a tensor of the CPU, and have nothing to wait for.
        patch.setattr(tier_store, "to_host", _to_host)

    def deferred(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, this thread's calls to torch are queued on the stream that it named, if it named one."""
        return _DeferredCalls(self)

    def step(self) -> bool:
        """Do what some stream has to do next; False if none has anything, or all wait."""
        able = [stream for stream in self._streams if stream.able]
        if not able:
            return False
        with self._on(self.compute):
            try:
                self.draw.choices(able, [stream.speed for stream in able])[0].step()
            except AssertionError as error:
                self.fault = self.fault or error
                raise
        return True

    def progress(self, steps: int) -> None:
        """Do so many, if there are."""
        for _ in range(steps):
            if not self.step():
                return

    def drain(self) -> None:
        """Do all that was queued."""
        while self.step():
            pass
        assert not any(stream.queued for stream in self._streams), "streams wait for each other"

    def _stream(self, device: torch.device = GPU) -> DeferredStream:
        self._streams.append(DeferredStream(device, self.draw.choice(SPEEDS)))
        return self._streams[-1]

    @contextlib.contextmanager
    def _on(self, stream: DeferredStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class DeferredStream:
    """Does what it is given in that order, when it is told to.

    Attributes:
        queued: what it has not done yet.
        speed: how often it is its turn, against others.
    """

    def __init__(self, device: torch.device, speed: int) -> None:
        self.device, self.speed = device, speed
        self.queued: deque[_Work] = deque()

    @property
    def able(self) -> bool:
        """Whether there is something to do that need not wait."""
        return bool(self.queued) and (self.queued[0].after is None or self.queued[0].after.reached)

    def queue(self, work: Callable[[], Any]) -> None:
        self.queued.append(_Work(work))

    def wait_event(self, event: DeferredEvent) -> None:
        self.queued.append(_Work(lambda: None, event))

    def step(self) -> None:
        self.queued.popleft().do()


class DeferredEvent:
    """A moment of one stream.

    Attributes:
        reached: whether the stream is there.
    """

    device = GPU

    def __init__(self, gpu: DeferredGpu) -> None:
        self.reached = False
        self._gpu = gpu

    def record(self, stream: DeferredStream) -> None:
        stream.queue(partial(setattr, self, "reached", True))

    def query(self) -> bool:
        """Time passes as the host looks; so whoever looks again and again gets there."""
        self._gpu.progress(self._gpu.draw.randrange(3))
        if not self.reached:
            assert self._gpu.step(), "the host waits for what no stream will do"
        return self.reached


class _Work(NamedTuple):
    do: Callable[[], Any]
    after: DeferredEvent | None = None


class _DeferredCalls(TorchFunctionMode):
    """Memory of the GPU, and what is page-locked, are tensors of the CPU; copies wait on the current stream."""

    def __init__(self, gpu: DeferredGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(
        self, call: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if call is torch.empty:
            return _noise(torch.empty(*args, dtype=kwargs["dtype"]))
        if call is torch.Tensor.pin_memory:
            return args[0].clone()
        stream = self._gpu.current
        if stream is self._gpu.compute:
            return call(*args, **kwargs)
        if call is torch.Tensor.to:
            assert kwargs.get("non_blocking"), "the host waits for all that the stream has to do"
            there = _noise(torch.empty_like(args[0]))
            stream.queue(partial(there.copy_, args[0]))
            return there
        assert call not in UNKNOWN, f"{call} is to be deferred as well"
        if call in COPIES:
            stream.queue(partial(call, *args, **kwargs))
            return kwargs.get("out", args[0])
        return call(*args, **kwargs)


def _noise(memory: torch.Tensor) -> torch.Tensor:
    memory.view(torch.uint8).fill_(NOISE)
    return memory


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _page_lock_nothing() -> SimpleNamespace:
    return SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: 0, cudaHostUnregister=lambda address: 0
    )
