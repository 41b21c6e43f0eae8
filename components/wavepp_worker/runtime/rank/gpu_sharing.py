"""Memory of a GPU that two processes use, and moments of its streams: CUDA's interprocess handles, as torch has them.

Written after torch 2.13 and driven in tests by a fake of these calls; not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wavepp_worker.runtime.protocol.slots import SharedMemory


def allocate(size: int, device: torch.device) -> torch.Tensor:
    """So many bytes that can be shared."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def share(memory: torch.Tensor) -> SharedMemory:
    """What another process opens it by; it must live until that has closed it.

    Raises:
        RuntimeError: the driver, the container or the allocator does not let processes share memory.
    """
    return SharedMemory(
        **dict(zip(SharedMemory.__struct_fields__, memory.untyped_storage()._share_cuda_(), strict=True))
    )


def open_shared(shared: SharedMemory) -> torch.Tensor:
    """The bytes that another process shares.

    Raises:
        RuntimeError: this process cannot reach them.
    """
    fields = [getattr(shared, field) for field in SharedMemory.__struct_fields__]
    storage = torch.UntypedStorage._new_shared_cuda(*fields)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def make_moments(count: int) -> tuple[torch.cuda.Event, ...]:
    """Events of the current device that another process may open by their ``ipc_handle()``."""
    return tuple(torch.cuda.Event(interprocess=True) for _ in range(count))


def open_moments(device: torch.device, handles: Sequence[bytes]) -> tuple[torch.cuda.Event, ...]:
    """Events of another process; ``device``: the GPU that they were made on."""
    return tuple(torch.cuda.Event.from_ipc_handle(device, handle) for handle in handles)
