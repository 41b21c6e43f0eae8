"""The library of kernels: whether it is there, what is said if not, and whose threads it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from wavepp_worker.model import native_library
from wavepp_worker.model.native_library import computes_on

CPU = torch.device("cpu")


def test_where_nothing_was_compiled_torch_computes_and_somebody_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native_library.library.cache_clear()
    monkeypatch.setattr(native_library, "find_spec", lambda name: None)
    try:
        assert not computes_on(torch.float64, CPU)
        assert not caplog.records, "it would not be used anyway"
        assert not computes_on(torch.bfloat16, CPU)
        assert not computes_on(torch.bfloat16, CPU)
        assert [record.message.split(";")[1] for record in caplog.records] == [
            " install g++, then wavepp-worker again"
        ]
    finally:
        native_library.library.cache_clear()


def test_kernels_that_cannot_be_loaded_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As of an installation that was cut short, or compiled where libraries are newer."""
    (tmp_path / "kernels.so").touch()
    native_library.library.cache_clear()
    found = SimpleNamespace(origin=str(tmp_path / "kernels.so"))
    monkeypatch.setattr(native_library, "find_spec", lambda name: found)
    try:
        assert not computes_on(torch.bfloat16, CPU)
        assert "the kernels cannot be loaded" in caplog.text
        assert "kernels.so: file too short" in caplog.text
    finally:
        native_library.library.cache_clear()


needs_kernels = pytest.mark.skipif(
    not computes_on(torch.bfloat16, CPU), reason="no compiler at installation, or a CPU without AVX2"
)


@needs_kernels
def test_kernels_of_another_version_are_not_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an update of an installation in place, which compiles nothing anew."""
    native_library.library.cache_clear()
    monkeypatch.setattr(native_library, "_VERSION", native_library._VERSION + 1)
    try:
        assert not computes_on(torch.bfloat16, CPU)
        assert "compiled for another version of wavepp-worker; install it again" in caplog.text
    finally:
        native_library.library.cache_clear()


@needs_kernels
def test_its_threads_are_those_of_torch() -> None:
    script = (
        "import torch; from wavepp_worker.model.native_library import computes_on\n"
        "assert computes_on(torch.bfloat16, torch.device('cpu'))\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line}\n"
        "assert len(maps) == 1, maps"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
