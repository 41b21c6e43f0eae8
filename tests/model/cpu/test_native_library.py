"""The library of kernels: whether it is there, what is said if not, and whose threads it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.cpu.native_library import INSTRUCTIONS, computes_on

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


def test_where_there_is_a_compiler_the_kernels_were_compiled() -> None:
    """An installation goes on without them, and so would all of their tests."""
    if which("g++") is None:
        pytest.skip("there is no compiler")
    assert find_spec("wavepp_worker.model.cpu._kernels") is not None, "see what g++ said: pip install -v -e ."


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
        "import torch; from wavepp_worker.model.cpu.native_library import computes_on\n"
        "assert computes_on(torch.bfloat16, torch.device('cpu'))\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line}\n"
        "assert len(maps) == 1, maps"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


NEWER = {"AVX2": "avx512f", "AVX512": "avx512_bf16", "AVX512_BF16": "amx_bf16"}
"""What a CPU calls the instructions after each."""
KERNEL_TESTS = ("elementwise", "native_attention", "native_linear", "fused_modules", "fused_decoder_layers")
FORMS = {"AVX2": 1, "AVX512": 1, "AVX512_BF16": 2}
"""What the library then says of itself."""


@needs_kernels
@pytest.mark.parametrize("most", INSTRUCTIONS[:-1])
def test_the_kernels_of_an_older_cpu_pass_their_tests_here(most: str) -> None:
    """In processes of their own, as a form is chosen once."""
    if NEWER[most] not in Path("/proc/cpuinfo").read_text():
        pytest.skip("these are the kernels of this CPU")
    asked = "from wavepp_worker.model.cpu.native_library import library; print(library().wavepp_kernels_run_here())"
    form = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "WAVEPP_MAX_CPU_ISA": most},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(form.stdout) == FORMS[most]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not soak", "-p", "no:cacheprovider"]
        + [str(Path(__file__).with_name(f"test_{each}.py")) for each in KERNEL_TESTS],
        env={**os.environ, "WAVEPP_MAX_CPU_ISA": most},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


@needs_kernels
def test_instructions_that_there_are_not_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library.library.cache_clear()
    monkeypatch.setenv("WAVEPP_MAX_CPU_ISA", "SSE2")
    try:
        with pytest.raises(
            ConfigError,
            match=r"'SSE2' is none of AVX2, AVX512, AVX512_BF16, AMX; name the most .* or unset it",
        ):
            computes_on(torch.bfloat16, CPU)
    finally:
        native_library.library.cache_clear()
