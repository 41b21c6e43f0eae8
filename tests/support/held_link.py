"""A way to a server on loopback that can hold back all bytes, as a network that breaks and TCP survives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class HeldLink:
    """Passes on what comes to a port of its own, to another and back, in a thread of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(5)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it nothing passes; what came meanwhile does afterwards."""
        self._loop.call_soon_threadsafe(self._open.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _listen(self) -> int:
        self._open.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    await self._open.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
