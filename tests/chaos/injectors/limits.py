"""Takes descriptors or memory away from a running process, by its limits."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.processes import PAGE_BYTES, descriptors

SPARE_DESCRIPTORS = 2
SPARE_BYTES = 4 << 20


@contextlib.contextmanager
def lowered(pid: int, which: int, limit: int) -> Iterator[None]:
    """The soft limit ``which`` of a process is ``limit`` inside. ProcessLookupError if it is gone."""
    soft, hard = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (limit, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, which, (soft, hard))


def few_descriptors(pid: int) -> contextlib.AbstractContextManager[None]:
    """It can open ``SPARE_DESCRIPTORS`` more, then nothing."""
    return lowered(pid, resource.RLIMIT_NOFILE, len(descriptors(pid)) + SPARE_DESCRIPTORS)


def little_memory(pid: int) -> contextlib.AbstractContextManager[None]:
    """It can map ``SPARE_BYTES`` more."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
    return lowered(pid, resource.RLIMIT_AS, pages * PAGE_BYTES + SPARE_BYTES)
