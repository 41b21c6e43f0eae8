"""Memory of a GPU that processes share, over files that they map, and moments that have come when they are noted."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from wavepp_worker.runtime.protocol.slots import SharedMemory
from wavepp_worker.runtime.rank import gpu_sharing


class FakeMoment:
    """One of another process, or of this."""

    stream = "another rank"

    def __init__(self, over: bool = True) -> None:
        self.over = over

    def ipc_handle(self) -> bytes:
        return b"moment"

    def record(self, stream: Any) -> None:
        stream.note_moment()

    def query(self) -> bool:
        return self.over


class FakeStream:
    """Does at once what is queued."""

    def __init__(self, calls: list[str], name: str) -> None:
        self._calls, self._name = calls, name

    def wait_event(self, event: Any) -> None:
        self._calls.append(f"{self._name} waits for a moment of {event.stream}")

    def wait_stream(self, other: FakeStream) -> None:
        self._calls.append(f"{self._name} waits for {other._name}")

    def synchronize(self) -> None:
        self._calls.append(f"{self._name} is waited for")

    def note_moment(self) -> None:
        self._calls.append(f"{self._name} notes a moment")

    def keeps(self) -> None:
        self._calls.append(f"{self._name} keeps a tensor")


class _Current(threading.local):
    stream: FakeStream | None = None


_current = _Current()


@contextlib.contextmanager
def _on(stream: FakeStream) -> Iterator[None]:
    _current.stream = stream
    try:
        yield
    finally:
        _current.stream = None


def fake_sharing(patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Patch what ranks call of CUDA.

    Returns:
        ``calls``: what was asked of streams, in order; ``moments``: that were opened; ``allocated_on``: the streams
        whose memory was taken, None for that of kernels; ``limit``: bytes that may be allocated, and ``reach``:
        whether another process may open them, both to be set.
    """
    fake = SimpleNamespace(calls=[], moments=[], allocated_on=[], limit=1 << 40, reach=True)
    files: dict[int, str] = {}
    folder = tempfile.mkdtemp()
    # Another process may open them until then.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def allocate(size: int, device: torch.device) -> torch.Tensor:
        fake.allocated_on.append(_current.stream)
        if size > fake.limit:
            raise RuntimeError("CUDA out of memory\nTried to allocate more")
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.truncate(size)
        memory = torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
        files[memory.data_ptr()] = file.name
        return memory

    def share(memory: torch.Tensor) -> SharedMemory:
        return SharedMemory(
            device=0,
            handle=files[memory.data_ptr()].encode(),
            size=memory.nbytes,
            offset=0,
            counter=b"",
            counter_offset=0,
            event=b"",
            awaits_event=True,
        )

    def open_shared(shared: SharedMemory) -> torch.Tensor:
        if not fake.reach:
            raise RuntimeError("invalid device context\nCompile with TORCH_USE_CUDA_DSA")
        return torch.from_file(shared.handle.decode(), shared=True, size=shared.size, dtype=torch.uint8)

    def open_moments(device: torch.device, handles: Sequence[bytes]) -> tuple[FakeMoment, ...]:
        assert device.type == "cuda"
        assert set(handles) == {b"moment"}
        opened = tuple(FakeMoment() for _ in handles)
        fake.moments.extend(opened)
        return opened

    patch.setattr(gpu_sharing, "allocate", allocate)
    patch.setattr(gpu_sharing, "share", share)
    patch.setattr(gpu_sharing, "open_shared", open_shared)
    patch.setattr(gpu_sharing, "open_moments", open_moments)
    patch.setattr(gpu_sharing, "make_moments", lambda count: tuple(FakeMoment() for _ in range(count)))
    patch.setattr(torch.cuda, "Stream", lambda device: FakeStream(fake.calls, "copying"))
    patch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(fake.calls, "computing"))
    patch.setattr(torch.cuda, "stream", _on)
    patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: stream.keeps())
    return fake
