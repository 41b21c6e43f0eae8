"""Results as JSON lines of a file or of standard output, each written whole as soon as it is there."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.runtime.client.prompt_lines import STANDARD


class ResultLines:
    """Writes without a buffer: what was written is there for others, and no part of a line is kept back."""

    def __init__(self, file: FileIO, name: str, *, new: bool) -> None:
        """``new``: nobody else has written to it."""
        self._file = file
        self._name = name
        self._new = new
        self._whole = 0

    def write(self, record: dict[str, Any]) -> None:
        """Write a line.

        Raises:
            WaveppError: it cannot be written; no part of it is left in a file.
            BrokenPipeError: nobody reads them any more.
        """
        left = memoryview(json.dumps(record).encode() + b"\n")
        size = len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._new:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._whole)
            raise WaveppError(f"results cannot be written to {self._name}: {error.strerror}") from error
        self._whole += size


@contextlib.contextmanager
def open_results(path: Path, prompts: Path) -> Iterator[ResultLines]:
    """A new file for results, or standard output if ``path`` is ``-``.

    Raises:
        ConfigError: the file cannot be written, or it is that of the prompts.
    """
    if path == STANDARD:
        with FileIO(sys.stdout.fileno(), "w", closefd=False) as file:
            yield ResultLines(file, "standard output", new=False)
        return
    if path.exists() and prompts.exists() and os.path.samefile(path, prompts):
        raise ConfigError(
            f"out is {path}, the file of the prompts, which it would overwrite; name another file"
        )
    try:
        file = FileIO(path, "w")
    except OSError as error:
        raise ConfigError(f"out is {path}, which cannot be written: {error.strerror}") from error
    with file:
        yield ResultLines(file, str(path), new=True)
