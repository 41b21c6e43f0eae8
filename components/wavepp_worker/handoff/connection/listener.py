"""A TCP server with its own event loop thread, for objects whose methods other threads call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.change_signal import ChangeSignal
from wavepp_worker.handoff.connection.channel import Channel, forget_frames
from wavepp_worker.handoff.connection.strangers import Strangers

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
"""Connections served at a time, or half the descriptors the process may have; more wait in the backlog."""
MAX_STRANGERS = 128
"""Of these, the most that have not said yet what they want; one more pushes another out."""
ACCEPT_RETRY_SECONDS = 0.2
"""Between two tries to accept while no descriptor is left."""
COMPLAIN_SECONDS = 1.0
"""Between two warnings about connections."""

_PEER_GAVE_UP = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR})

Handler = Callable[[Channel], Awaitable[None]]


class Listener:
    """Listens from construction on; after ``start``, serves each connection in its loop thread.

    A handler calls ``Channel.welcome`` once the peer may stay. Until then the connection is a stranger's, which
    makes room for others when there are many.

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
        self._serving: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(MAX_STRANGERS)
        self._most = _most_connections()
        self._left = ChangeSignal()
        self._complain_again = 0.0
        self._unsaid = 0
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: %s", self._name, error, exc_info=error)

    async def _accept(self, handle: Handler) -> None:
        """Accept for as long as the loop runs, whatever goes wrong with a connection or the descriptors."""
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._sock)
            except OSError as error:
                forget_frames(error)
                if error.errno in _PEER_GAVE_UP:
                    continue
                # Most likely no descriptor is left. The peer waits in the backlog meanwhile.
                self._complain(f"cannot accept a connection: {error}")
                self._show_out(self._strangers.push_out())
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            with contextlib.suppress(OSError), contextlib.ExitStack() as unless_served:
                unless_served.callback(connection.close)
                # This raises if the peer reset it before it was even looked at.
                channel = Channel(connection, f"{address[0]}:{address[1]}")
                await self._left.wait_for(lambda: len(self._serving) - len(self._strangers) < self._most)
                unless_served.pop_all()
                self._take_in(handle, channel, str(address[0]))
            # Whoever has said what it wants by now is heard before the next one, of whom a whole backlog may be there,
            # pushes it out.
            await asyncio.sleep(0)

    def _take_in(self, handle: Handler, channel: Channel, address: str) -> None:
        """Serve a connection as a stranger's; if that makes too many, another stranger's is closed."""
        if len(self._serving) >= self._most:
            self._show_out(self._strangers.push_out())
        task = self._spawn(self._serve(handle, channel))
        self._serving.add(task)
        task.add_done_callback(functools.partial(self._gone, channel))
        channel.on_welcome = functools.partial(self._strangers.leave, task)
        self._show_out(self._strangers.enter(task, address))

    def _show_out(self, stranger: object) -> None:
        """Close the connection of someone who said nothing, if there is anyone."""
        if isinstance(stranger, asyncio.Task):
            stranger.cancel()
            self._complain("a connection that had not said what it wants made room for others")

    def _gone(self, channel: Channel, task: asyncio.Task[None]) -> None:
        # Here, as a task that is cancelled before its first step runs none of its code.
        channel.close()
        self._serving.discard(task)
        self._strangers.leave(task)
        self._left.fire()

    async def _serve(self, handle: Handler, channel: Channel) -> None:
        try:
            await handle(channel)
        except HandoffError as error:
            self._complain(str(error))

    def _complain(self, what: str) -> None:
        """Log a warning, but not one for each of a flood."""
        now = time.monotonic()
        if now < self._complain_again:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like this were not logged)" if self._unsaid else ""
        logger.warning("%s: %s%s", self._name, what, more)
        self._complain_again, self._unsaid = now + COMPLAIN_SECONDS, 0

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


def _most_connections() -> int:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, descriptors // 2)
    )
