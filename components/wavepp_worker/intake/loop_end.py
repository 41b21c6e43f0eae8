"""The end of an event loop that had a thread of its own."""

from __future__ import annotations

import asyncio
import threading

LAST_SECONDS = 1.0
"""What is cancelled at the end may take."""
JOIN_SECONDS = 5.0
"""What runs in the loop may take until it lets the loop stop."""


def end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop and close a loop; what still waits in it, as of nats-py's, is cancelled and ends first.

    Else a collector would end it later, in a loop that is closed. A loop that does not stop stays open.

    Args:
        thread: that runs it, if it was started.
    """
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            return
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LAST_SECONDS))
    loop.close()
