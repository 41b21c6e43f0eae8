"""One worker's KV memory registered with NIXL: what both sides need of the library."""

from __future__ import annotations

import time
import uuid
from typing import Any

import numpy as np

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.nixl.library import load_nixl
from wavepp_worker.model.stage import PagedKV


def memory_of(kv: PagedKV) -> tuple[str, int]:
    """NIXL's name of the kind of memory that ``kv`` is in, and its device number."""
    if kv.device.type == "cuda":
        return "VRAM", kv.device.index or 0
    return "DRAM", 0


class RegisteredMemory:
    """A NIXL agent with one ``PagedKV`` registered. Thread-safe.

    Args:
        name: of the agent; made unique.
        host: where this process is to be reached.

    Raises:
        ConfigError: NIXL cannot be loaded.
        HandoffError: the memory cannot be registered.
    """

    def __init__(self, kv: PagedKV, name: str, host: str) -> None:
        api = load_nixl(host)
        self.memory, self.device = memory_of(kv)
        try:
            # NIXL's own progress thread spins on a core for as long as the agent lives.
            config = api.nixl_agent_config(
                backends=["UCX"],
                enable_prog_thread=False,
                sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
            )
            self.agent = api.nixl_agent(f"{name}-{uuid.uuid4()}", config)
            regions = [(address, size, self.device, "") for address, size in kv.regions()]
            self._registered = self.agent.register_memory(regions, self.memory)
        except Exception as error:
            raise HandoffError(
                f"NIXL cannot register this worker's KV memory: {type(error).__name__}: {error}. "
                "Set handoff to socket to do without it"
            ) from error

    def describe(self, addresses: np.ndarray, sizes: np.ndarray, memory: str, device: int) -> Any:
        """NIXL's list of the memory at ``addresses`` with ``sizes`` bytes each (both uint64 ``[n]``)."""
        rows = np.empty((len(addresses), 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = addresses, sizes, device
        return self.agent.get_xfer_descs(rows, memory)

    def progress(self) -> None:
        """Serve what others do with this memory; transports without remote DMA need it while they read."""
        self.agent.get_new_notifs()

    def close(self) -> None:
        """Unregister; no transfer may be running. Idempotent."""
        if self._registered is not None:
            self.agent.deregister_memory(self._registered)
            self._registered = None


def release(handle: Any, timeout: float) -> bool:
    """Let go of a transfer, aborting it if it still runs; whether it has ended within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            handle.release()
            return True
        except Exception:
            # NIXL says so while the transfer is still being aborted.
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
