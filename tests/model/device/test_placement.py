"""What may be computed on, as far as the driver tells."""

from __future__ import annotations

import ctypes

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.device import placement
from wavepp_worker.model.device.placement import check_device, gpu_count


@pytest.mark.parametrize(
    ("asked", "gpus", "sentence"),
    [
        ("cuda", 0, "device: cuda is asked for, but no GPU can be seen here .*; set device to cpu"),
        ("cuda:0", 0, "device: cuda:0 is asked for, but no GPU"),
        ("cuda:2", 2, "device: cuda:2 is asked for, but only 2 can be seen here"),
        ("gpu", 2, "device: 'gpu' is none; it is cpu, cuda, or one GPU such as cuda:0"),
        ("cuda:", 2, "device: 'cuda:' is none"),
    ],
)
def test_what_there_is_not_is_refused(
    asked: str, gpus: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "gpu_count", lambda: gpus)
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        check_device(asked)


def test_what_there_is_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gpu_count", lambda: 2)
    for asked in ("cpu", "cuda", "cuda:1"):
        check_device(asked)


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    assert gpu_count() == 0
