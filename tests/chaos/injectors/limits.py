"""Takes descriptors or memory away from a running process, by its limits."""

from __future__ import annotations

import contextlib
import itertools
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.processes import PAGE_BYTES

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


def few_descriptors(pid: int, spare: int = SPARE_DESCRIPTORS) -> contextlib.AbstractContextManager[None]:
    """It can open ``spare`` more, then nothing. ProcessLookupError if it is gone."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
    # Whoever looks at itself has one more while it looks.
    taken = {int(link.name) for link in links if link.is_symlink()}
    # The limit is of the highest number, and numbers that were given back are taken again.
    free = (number for number in itertools.count() if number not in taken)
    return lowered(pid, resource.RLIMIT_NOFILE, next(itertools.islice(free, spare, None)))


def little_memory(pid: int) -> contextlib.AbstractContextManager[None]:
    """It can map ``SPARE_BYTES`` more."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
    return lowered(pid, resource.RLIMIT_AS, pages * PAGE_BYTES + SPARE_BYTES)
