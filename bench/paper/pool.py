"""Boots of the paper's evaluation side by side in processes, on the virtual clock.

What a worker process runs must be importable there, and a module that was started by ``python -m`` is not.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common.cells import CELLS, Cell
from bench.paper.boots import in_order, virtual_boot
from bench.paper.rows import CellRow, cell_key

Boot = tuple[str, str, list[Cell]]
"""Model, policy, and the cells in the order to run them."""

_found: Any = None
"""In a worker process: the queue that takes the rows."""


def missing(models: Sequence[str], policies: Sequence[str], only: str, rows: Sequence[CellRow]) -> list[Boot]:
    """What has to run: per model and policy, the cells that ``rows`` lacks, in the order to run them."""
    done = {row.key for row in rows}
    boots = []
    for model in models:
        for policy in policies:
            cells = [cell for cell in CELLS if cell.model == model and only in cell.name]
            if cells := in_order(cell for cell in cells if cell_key(policy, cell) not in done):
                boots.append((model, policy, cells))
    return boots


def side_by_side(boots: Sequence[Boot], kv_tokens: int, times: int, processes: int) -> Iterator[CellRow]:
    """Rows as they are measured, several boots at once."""
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    with context.Pool(processes, _set_queue, (found,)) as pool:
        jobs = pool.map_async(_measure, [(*boot, kv_tokens, times) for boot in boots], chunksize=1)

        def end() -> None:
            jobs.wait()
            found.put(None)

        threading.Thread(target=end, daemon=True).start()
        while (row := found.get()) is not None:
            yield row
        jobs.get()


def _set_queue(found: Any) -> None:
    global _found
    _found = found


def _measure(job: tuple[str, str, list[Cell], int, int]) -> None:
    model, policy, cells, kv_tokens, times = job
    for row in virtual_boot(model, policy, cells, kv_tokens, times=times):
        _found.put(row)
