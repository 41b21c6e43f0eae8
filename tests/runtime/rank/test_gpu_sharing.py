"""What is asked of torch for memory and moments that processes share; the calls themselves need a GPU."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from wavepp_worker.runtime.protocol.slots import SharedMemory
from wavepp_worker.runtime.rank import gpu_sharing

CPU = torch.device("cpu")
SHARED = (3, b"handle", 64, 512, b"counter", 7, b"event", True)


def test_what_torch_says_of_shared_memory_is_what_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = gpu_sharing.allocate(64, CPU)
    assert (memory.dtype, memory.nbytes) == (torch.uint8, 64)
    opened: list[Any] = []

    def open_(*fields: Any) -> torch.UntypedStorage:
        opened.append(fields)
        return memory.untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: SHARED)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", open_)
    shared = gpu_sharing.share(memory)
    assert shared == SharedMemory(
        device=3,
        handle=b"handle",
        size=64,
        offset=512,
        counter=b"counter",
        counter_offset=7,
        event=b"event",
        awaits_event=True,
    )
    memory.fill_(5)
    assert torch.equal(gpu_sharing.open_shared(shared), memory)
    assert opened == [SHARED]


def test_torch_has_the_same_order_as_ours() -> None:
    """It is not documented, but what torch sends between processes itself."""
    order = [name for name in inspect.signature(rebuild_cuda_tensor).parameters if name != "requires_grad"]
    assert order[order.index("storage_device") :] == [
        "storage_device",
        "storage_handle",
        "storage_size_bytes",
        "storage_offset_bytes",
        "ref_counter_handle",
        "ref_counter_offset",
        "event_handle",
        "event_sync_required",
    ]


def test_moments_can_be_opened_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self, **how: Any) -> None:
            self.how = how

        @classmethod
        def from_ipc_handle(cls, device: torch.device, handle: bytes) -> Any:
            return device, handle

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert [each.how for each in gpu_sharing.make_moments(2)] == [{"interprocess": True}] * 2  # type: ignore[attr-defined]
    assert gpu_sharing.open_moments(CPU, [b"a", b"b"]) == ((CPU, b"a"), (CPU, b"b"))
