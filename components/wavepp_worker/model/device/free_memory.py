"""How much memory a device has left. Needs no tensor library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError

_CGROUPS = (
    # Version 2, then 1: the limit, what is used, and what of that the kernel would give back.
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(device: str) -> int:
    """Bytes that a device has left for who comes now: ``cpu``, or a GPU such as ``cuda:0``.

    Raises:
        ConfigError: it cannot be asked; names ``device``.
    """
    return free_host_memory() if device == "cpu" else free_gpu_memory(int(device.partition(":")[2] or 0))


def free_host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What the kernel would give to a new program, within the limit of this one's control group."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    available = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    return min([available, *_left_in_groups(cgroups)])


def _left_in_groups(cgroups: Path) -> list[int]:
    left = []
    for limit, used, inactive in _CGROUPS:
        file = cgroups / limit
        try:
            most, now = int(file.read_text()), int((cgroups / used).read_text())
            stat = dict(line.split() for line in (file.parent / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            # There is no such group, or no limit.
            continue
        left.append(max(0, most - now + int(stat.get(inactive, 0))))
    return left


def free_gpu_memory(index: int, driver: Any = None) -> int:
    """What a GPU has left, as its driver says.

    Args:
        index: among those that this process sees.
        driver: the driver's library, by default the one that is installed.

    Raises:
        ConfigError: the driver cannot be asked; names ``device``.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1") if driver is None else driver
    except OSError as error:
        raise ConfigError(f"device: cuda is asked for, but there is no NVIDIA driver ({error})") from error
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def ask(call: Callable[..., int], *arguments: Any) -> None:
        if (code := call(*arguments)) != 0:
            raise ConfigError(
                f"device: cuda:{index} cannot be asked for its memory (CUDA error {code}); set kv_tokens"
            )

    ask(library.cuInit, 0)
    ask(library.cuDeviceGet, ctypes.byref(device), index)
    # Memory is told to a context alone; this one is let go of at once, as ranks have their own.
    ask(library.cuDevicePrimaryCtxRetain, ctypes.byref(context), device)
    try:
        ask(library.cuCtxPushCurrent_v2, context)
        ask(library.cuMemGetInfo_v2, ctypes.byref(free), ctypes.byref(total))
        ask(library.cuCtxPopCurrent_v2, ctypes.byref(context))
    finally:
        library.cuDevicePrimaryCtxRelease_v2(device)
    return free.value
