"""Waiting in an event loop until some state, changed by callbacks of the same loop, is as wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wavepp_worker.handoff.connection import deadline


class ChangeSignal:
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
        try:
            async with deadline.timeout(timeout):
                while not condition():
                    await self._next.wait()
        except asyncio.TimeoutError:
            return bool(condition())
        return True
