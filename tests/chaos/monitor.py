"""Watches a running graph: whether all is ready, and what every process holds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.chaos.display import Display
from tests.chaos.explain import Health
from tests.chaos.processes import holdings, roles_down
from tests.chaos.record import Record
from tests.support.graph_process import RunningGraph

SAMPLE_SECONDS, HEALTH_SECONDS = 3.0, 0.5


@contextlib.asynccontextmanager
async def monitored(
    graph: RunningGraph, record: Record, display: Display, now: Callable[[], float]
) -> AsyncIterator[None]:
    """Fills ``record.health`` and ``record.samples`` inside the context."""
    task = asyncio.create_task(_monitor(graph, record, display, now))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _monitor(graph: RunningGraph, record: Record, display: Display, now: Callable[[], float]) -> None:
    next_sample = 0.0
    while True:
        at = now()
        display.advance(at)
        record.health.append(Health(round(at, 2), roles_down(graph)))
        if at >= next_sample:
            record.samples += await asyncio.to_thread(holdings, graph, at)
            next_sample = at + SAMPLE_SECONDS
        await asyncio.sleep(HEALTH_SECONDS)


async def ready_again(graph: RunningGraph, seconds: float) -> bool:
    """Wait until every service says that it is ready; returns whether they do within ``seconds``."""
    deadline = time.monotonic() + seconds
    while roles_down(graph):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(HEALTH_SECONDS)
    return True


def files_of(graph: RunningGraph) -> set[str]:
    """Files, sockets and directories under the run's directory; but those in which a queue keeps its jobs."""
    found = {path.relative_to(graph.run_dir) for path in graph.run_dir.rglob("*")}
    return {str(path) for path in found if path.parts[0] != "nats"}


def shared_memory() -> list[str]:
    """Names of shared memory that no process has mapped.

    But not the semaphores of Python's ``multiprocessing``: nothing here uses it, and other programs on the machine do.
    """
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped.update(line.split()[-1] for line in maps.read_text().splitlines() if "/dev/shm/" in line)
    return sorted(
        str(path)
        for path in Path("/dev/shm").iterdir()
        if str(path) not in mapped and not path.name.startswith("sem.mp-")
    )
