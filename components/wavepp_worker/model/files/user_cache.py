"""Where files of this user are kept that can be made again, and how they are read and written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """``$WAVEPP_CACHE``, else the platform's user cache directory for ``wavepp``."""
    override = os.environ.get("WAVEPP_CACHE")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("wavepp")


def read_kept(file: Path, most: int) -> bytes | None:
    """Up to ``most`` bytes that this user kept; None if they are not there, or others may have written them."""
    with contextlib.suppress(OSError):
        # Not waiting for somebody to write: where the directory is others', they may have put a pipe there.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                return stream.read(most)
    return None


def keep(file: Path, content: bytes) -> None:
    """Write a file, if that can be done; whoever reads it meanwhile sees the one before or this one."""
    with contextlib.suppress(OSError):
        make_folder(file.parent)
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            os.replace(name, file)
        except OSError:
            os.unlink(name)
            raise


def make_folder(folder: Path) -> None:
    """Make a directory that only this user can look into.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
