"""A disk that damages what is on it, cuts it off, or is full."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.processes import descriptors

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
FLIPS = 400
_FILLER = "filler"


@contextlib.contextmanager
def small_disk(directory: Path, mebibytes: int) -> Iterator[bool]:
    """A file system of its own at ``directory``; gives whether it could be had, which takes root's rights."""
    directory.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "wavepp-chaos", str(directory)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            # Lazily: a process that should be gone may still have it open, and is reported elsewhere.
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def file_of(pid: int, directory: Path) -> Path | None:
    """The file under ``directory`` that a process has open."""
    names = (name.removesuffix(" (deleted)") for name in descriptors(pid))
    paths = (Path(name) for name in names if name.startswith(f"{directory.resolve()}/"))
    return next((path for path in paths if path.is_file()), None)


def flip(path: Path, draw: random.Random) -> None:
    """Change bytes all over the file, its header and tables included."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for _ in range(FLIPS):
            place = draw.randrange(size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ (1 << draw.randrange(8))]))


def truncate(path: Path) -> None:
    """Cut the file to half its size."""
    os.truncate(path, path.stat().st_size // 2)


@contextlib.contextmanager
def full(directory: Path, path: Path) -> Iterator[None]:
    """Nothing more fits under ``directory``, and the second half of ``path`` has to be allocated again."""
    filler = directory / _FILLER
    _punch(path)
    try:
        with filler.open("wb", buffering=0) as file:
            block = bytes(1 << 16)
            with contextlib.suppress(OSError):
                while True:
                    file.write(block)
        yield
    finally:
        filler.unlink(missing_ok=True)


def _punch(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        start, length = ctypes.c_long(size // 2), ctypes.c_long(size - size // 2)
        if libc.fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, start, length):
            code = ctypes.get_errno()
            raise OSError(code, f"{errno.errorcode.get(code)}: no hole can be made in {path}")
