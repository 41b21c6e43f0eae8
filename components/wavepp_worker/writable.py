"""Whether files can be made where they shall be."""

from __future__ import annotations

import tempfile
from pathlib import Path


def existing(path: Path) -> Path:
    """The path, or the nearest above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def check_writable(path: Path) -> None:
    """Raise OSError unless files could be in a directory, once it is made with all that lead to it; makes nothing."""
    # A system directory such as /proc looks writable to root and takes no files.
    tempfile.TemporaryFile(dir=existing(path)).close()
