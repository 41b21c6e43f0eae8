"""Many seeds in several processes, until one breaks a promise."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

from tests.simulator.world import World

STRIDE = 100


def failure(job: tuple[int, int, int | None, str, str]) -> tuple[int, str] | None:
    """The first seed of a stretch that breaks a promise, and how."""
    first, count, ranks, admission, ownership = job
    for seed in range(first, first + count):
        try:
            World(seed, ranks=ranks, admission=admission, ownership=ownership).run()
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


def keep_imports() -> None:
    """Spare what is loaded from garbage collection: looking through it again and again is a tenth of the time."""
    gc.freeze()


def first_failure(
    first: int, seeds: int, ranks: int | None, admission: str, ownership: str, processes: int = 2
) -> Iterator[tuple[int, str] | None]:
    """One result per ``STRIDE`` seeds, in order."""
    jobs = (
        (at, min(STRIDE, first + seeds - at), ranks, admission, ownership)
        for at in range(first, first + seeds, STRIDE)
    )
    with multiprocessing.get_context("spawn").Pool(processes, keep_imports) as pool:
        yield from pool.imap(failure, jobs)
