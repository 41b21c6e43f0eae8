"""What a configuration may compute on, known without a tensor library."""

from __future__ import annotations

import ctypes
import re

from wavepp_worker.errors import ConfigError


def check_device(device: str) -> None:
    """Refuse what this machine has not.

    Raises:
        ConfigError: ``device`` is neither ``cpu`` nor ``cuda`` or one of its numbers, or there is no such GPU.
    """
    if device == "cpu":
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise ConfigError(f"device: {device!r} is none; it is cpu, cuda, or one GPU such as cuda:0")
    count = gpu_count()
    if count == 0:
        raise ConfigError(
            f"device: {device} is asked for, but no GPU can be seen here (no NVIDIA driver, or CUDA_VISIBLE_DEVICES "
            "hides all); set device to cpu"
        )
    if match[1] is not None and int(match[1]) >= count:
        raise ConfigError(
            f"device: {device} is asked for, but only {count} can be seen here, from cuda:0 on; lower the number, or "
            "set CUDA_VISIBLE_DEVICES"
        )


def gpu_count() -> int:
    """GPUs that processes started from here see, as the driver counts them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
