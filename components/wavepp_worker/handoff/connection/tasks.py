"""Ending asyncio tasks that belong together: none goes on behind the back of whoever waits for them."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that still run and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await all_done(*tasks)


async def all_done(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all have ended; being cancelled takes effect only then."""
    cancelled = False
    while running := {task for task in tasks if not task.done()}:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def results(*tasks: asyncio.Future[Any]) -> list[Any]:
    """What the ended tasks returned; the first one's error that was not merely cancelled, if there is any."""
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]
