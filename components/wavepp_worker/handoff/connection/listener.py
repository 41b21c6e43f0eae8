"""A TCP server with its own event loop thread, for objects whose methods other threads call."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.channel import Channel

logger = logging.getLogger(__name__)

Handler = Callable[[Channel], Awaitable[None]]


class Listener:
    """Listens from construction on; after ``start``, serves each connection in its loop thread.

    Args:
        port: 0 takes a free one; ``port`` tells which.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._sock = socket.create_server((host, port), family=family, backlog=256)
        self.host = host
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, handle: Handler) -> None:
        self._loop.call_soon(self._spawn, self._accept(handle))
        self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Run ``function`` in the loop thread, in the order of calls; silently not after ``close``."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task of the loop; an error in it is logged."""
        self.call(self._spawn, work)

    def close(self, timeout: float) -> None:
        """Stop accepting, cancel what runs, and end the thread, within ``timeout`` seconds. Idempotent."""
        if self._thread.is_alive():
            self.call(self._stop)
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error("%s did not stop within %.1f s", self._name, timeout)
        self._sock.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: %s", self._name, error, exc_info=error)

    async def _accept(self, handle: Handler) -> None:
        while True:
            connection, address = await self._loop.sock_accept(self._sock)
            self._spawn(self._serve(handle, Channel(connection, f"{address[0]}:{address[1]}")))

    async def _serve(self, handle: Handler, channel: Channel) -> None:
        try:
            await handle(channel)
        except HandoffError as error:
            logger.warning("%s: %s", self._name, error)
        finally:
            channel.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()

        async def gone() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)
            self._loop.stop()

        self._loop.create_task(gone())
