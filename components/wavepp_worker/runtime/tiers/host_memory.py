"""The host tier of one window: memory that a GPU can copy to and from while the host goes on."""

from __future__ import annotations

import torch

from wavepp_worker.errors import ConfigError


class HostMemory:
    """``blocks`` blocks in host memory, page-locked when ``device`` is a GPU.

    Attributes:
        rows: uint8 ``[blocks, block_bytes]``, one row per slot.

    Raises:
        ConfigError: the memory cannot be had, or not be locked.
    """

    def __init__(self, blocks: int, block_bytes: int, device: torch.device) -> None:
        size = blocks * block_bytes
        failure = f"host_kv_tokens: cannot have {size} bytes of host memory; lower host_kv_tokens"
        try:
            self.rows = torch.empty(blocks, block_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            raise ConfigError(f"{failure} ({error})") from error
        self._locked = device.type == "cuda" and size > 0
        if self._locked:
            # Not pin_memory=True: that allocator rounds up to a power of two, up to twice the memory asked for.
            try:
                torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.rows.data_ptr(), size, 0))
            except RuntimeError as error:
                raise ConfigError(f"{failure} or raise the limit of locked memory ({error})") from error

    def close(self) -> None:
        """Give the memory up. No copy reads or writes it any more. Idempotent."""
        if self._locked:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.rows.data_ptr()))
            self._locked = False
        self.rows = torch.empty(0, self.rows.shape[1], dtype=torch.uint8)
