"""Waiting in an event loop until some state, changed by callbacks of the same loop, is as wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Pulse:
    """Wakes every waiter whenever the state may have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, condition: Callable[[], object], timeout: float | None = None) -> bool:
        """Whether ``condition`` became true within ``timeout`` seconds.

        None waits without an end of its own: only where another bound ends the waiting task.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(self._next.wait(), left)
            except asyncio.TimeoutError:
                continue
        return True
