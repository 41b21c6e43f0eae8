"""Which GPUs each process sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from wavepp_worker.errors import ConfigError


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them; empty where there are none."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return []
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(index) for index in range(count)]


class Allotment:
    """Hands out GPUs, each to one process at a time."""

    def __init__(self) -> None:
        self._all: list[str] | None = None
        self._taken: set[str] = set()

    def take(self, count: int, key: str) -> list[str]:
        """The next ``count`` GPUs.

        Raises:
            ConfigError: fewer are left; names ``key``.
        """
        if count == 0:
            return []
        if self._all is None:
            self._all = visible_gpus()
        left = [name for name in self._all if name not in self._taken]
        if len(left) < count:
            raise ConfigError(
                f"{key}: {count} more GPUs are asked for, but of the {len(self._all)} of this machine "
                f"{len(left)} are left; lower it or ServiceArgs.workers, or set CUDA_VISIBLE_DEVICES"
            )
        self._taken.update(left[:count])
        return left[:count]

    def give_back(self, devices: Iterable[str]) -> None:
        """Nobody uses them any more."""
        self._taken.difference_update(devices)
