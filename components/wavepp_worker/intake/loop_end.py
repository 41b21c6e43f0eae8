"""The end of an event loop that had a thread of its own."""

from __future__ import annotations

import asyncio

LAST_SECONDS = 1.0
"""What is cancelled at the end may take."""


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop that nobody runs any more; what still waits in it, as of nats-py's, is cancelled and ends first.

    Else a collector would end it later, in a loop that is closed.
    """
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LAST_SECONDS))
    loop.close()
