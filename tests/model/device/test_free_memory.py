"""What devices have left, as files and drivers say it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.device.free_memory import free_gpu_memory, free_host_memory, free_memory


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n")
    return tmp_path


def group(directory: Path, names: tuple[str, str], most: str, used: int, inactive: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names[0]).write_text(f"{most}\n")
    (directory / names[1]).write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\n{inactive} 300\n")


def test_a_host_has_what_its_kernel_and_its_control_group_allow(proc: Path, tmp_path: Path) -> None:
    assert free_host_memory(proc, tmp_path / "none") == 1000 * 1024
    second = ("memory.max", "memory.current")
    group(tmp_path / "v2", second, "max", 5000, "inactive_file")
    assert free_host_memory(proc, tmp_path / "v2") == 1000 * 1024
    group(tmp_path / "v2", second, "6000", 5000, "inactive_file")
    assert free_host_memory(proc, tmp_path / "v2") == 1300
    group(tmp_path / "v2", second, "4000", 5000, "inactive_file")
    assert free_host_memory(proc, tmp_path / "v2") == 0
    group(
        tmp_path / "v1" / "memory",
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        "900",
        200,
        "total_inactive_file",
    )
    assert free_host_memory(proc, tmp_path / "v1") == 1000
    assert 1 << 20 < free_memory("cpu") < 1 << 50


class Driver:
    """What CUDA's driver answers, with one GPU of which 7 bytes are free."""

    def __init__(self) -> None:
        self.held = 0

    def __getattr__(self, name: str) -> Any:
        return (
            type(self).__dict__[f"_{name}"].__get__(self)
            if f"_{name}" in type(self).__dict__
            else lambda *_: 0
        )

    def _cuDeviceGet(self, device: Any, index: int) -> int:
        return 0 if index == 0 else 101

    def _cuDevicePrimaryCtxRetain(self, *_: Any) -> int:
        self.held += 1
        return 0

    def _cuDevicePrimaryCtxRelease_v2(self, *_: Any) -> int:
        self.held -= 1
        return 0

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        assert self.held == 1
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = 7
        return 0


def test_a_gpu_is_asked_and_let_go_of() -> None:
    driver = Driver()
    assert free_gpu_memory(0, driver) == 7
    assert driver.held == 0
    with pytest.raises(
        ConfigError, match=r"^device: cuda:1 cannot be asked for its memory \(CUDA error 101\)"
    ):
        free_gpu_memory(1, driver)
