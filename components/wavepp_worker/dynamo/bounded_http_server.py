"""An HTTP server that clients who send no request or read no answer cannot fill, nor their bytes its log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from wavepp_worker.dynamo.log_budget import LogBudget

logger = logging.getLogger(__name__)
logger.addFilter(LogBudget())

MAX_CONNECTIONS = 4096
"""Connections at a time, or fewer where the process may open less than ``DESCRIPTORS_PER_CONNECTION`` as many files."""
DESCRIPTORS_PER_CONNECTION = 3
"""A request that is answered has a second connection, and there is more in a process than connections."""
FIRST_REQUEST_SECONDS = 10.0
"""How long a client may take to send the head of its first request."""
IDLE_SECONDS = 75.0
"""How long a connection is kept for a further request."""
UNREAD_SECONDS = 60.0
"""How long a client may take less than ``LEAST_READ_BYTES`` of an answer that waits for it."""
UNREAD_AT_LIMIT_SECONDS = 10.0
"""The same while a new connection finds no room."""
LEAST_READ_BYTES = 16 << 10
LOOK_SECONDS = 1.0
"""Between two looks at who reads."""
_READING_TURNS = 10
"""Of the event loop, more than it takes from a request's bytes in a socket to its handler."""

_TCP_INFO = struct.Struct("120xQ")
"""``tcpi_bytes_acked`` of Linux's ``struct tcp_info`` (``linux/tcp.h``)."""
_OTHER_PROTOCOLS = ("websocket", "tcp")
"""All that aiohttp leaves HTTP for; it goes on where a client offers others, such as curl does HTTP/2."""


@dataclass(frozen=True)
class _Unread:
    """An answer of which something waited in this process whenever it was looked at.

    Attributes:
        taken: bytes of the connection that the client's host had acknowledged.
        since: then, on the loop's clock.
    """

    taken: int
    since: float


class BoundedHttpServer(web.Server):
    """Hands each request to ``handle``; connections that have none being answered are *silent*.

    A silent connection is closed after a while, once its last answer has been read. One whose client does not read
    its answer is closed as well. Where there are too many connections, room is made at once: by the longest silent
    one, else by the one that has not been read the longest, for ``UNREAD_AT_LIMIT_SECONDS`` or more, else a new one is
    closed. Whether clients read is known on Linux only.
    """

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        max_connections: int | None = None,
        **options: Any,
    ) -> None:
        """To be made in a running loop; ``options`` are of ``web.Server``."""
        super().__init__(self._answer, logger=logger, **options)
        self._handle = handle
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max_connections or max(1, min(MAX_CONNECTIONS, files // DESCRIPTORS_PER_CONNECTION))
        self._silent: dict[web.RequestHandler, asyncio.Handle] = {}
        self._asked: set[web.RequestHandler] = set()
        self._leaving = False
        self._unread: dict[web.RequestHandler, _Unread] = {}
        self._next_look: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """Keep no connection for a further request: close those that wait for one, and others with their answer.

        Who has sent no request yet is not closed, as one may be on its way; it is answered.
        """
        self._leaving = True
        for handler in [each for each in self._silent if each in self._asked]:
            self._forget(handler)
            # What is unread of its last answer is still sent.
            handler.force_close()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._await_request(handler, FIRST_REQUEST_SECONDS)
        if len(self.connections) > self._most:
            self._drop(self._dispensable())
        if self._next_look is None:
            self._look_later()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        self._asked.discard(handler)
        self._unread.pop(handler, None)
        super().connection_lost(handler, exc)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        self._forget(handler)
        self._asked.add(handler)
        try:
            response = await self._handle(request)
            if self._leaving:
                response.force_close()
            chunked = "Transfer-Encoding" in request.headers
            if leaves_http(request) or (chunked and not request.content.is_eof()):
                # What follows is no request; or others could not pass while aiohttp reads the rest of a body, which may
                # be in chunks of one byte.
                await response.prepare(request)
                await response.write_eof()
                handler.force_close()
            return response
        finally:
            if handler.transport is not None:
                self._await_request(handler, IDLE_SECONDS)

    def _await_request(self, handler: web.RequestHandler, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._silent[handler] = loop.call_later(seconds, self._silent_for_long, handler, _READING_TURNS)

    def _forget(self, handler: web.RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def _dispensable(self) -> web.RequestHandler:
        # The new one is silent, and the last that became so.
        *others, new = self._silent
        if (silent := next((each for each in others if not _unsent(each)), None)) is not None:
            return silent
        handler, unread = next(iter(self._unread.items()), (new, None))
        if unread is None or asyncio.get_running_loop().time() - unread.since >= UNREAD_AT_LIMIT_SECONDS:
            return handler
        return new

    def _silent_for_long(self, handler: web.RequestHandler, turns: int) -> None:
        if turns:
            # Its request may be here, unread: this process, too, may not have run for so long.
            loop = asyncio.get_running_loop()
            self._silent[handler] = loop.call_soon(self._silent_for_long, handler, turns - 1)
        elif _unsent(handler):
            # What was answered is still on its way: whether it is read, the looks find out.
            self._forget(handler)
            self._await_request(handler, IDLE_SECONDS)
        else:
            self._drop(handler)

    def _drop(self, handler: web.RequestHandler) -> None:
        self._forget(handler)
        transport, unsent = handler.transport, _unsent(handler)
        handler.force_close()
        if transport is not None and unsent:
            # Else it would stay until its client has read everything.
            transport.abort()

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """See who reads on, and drop who has not for too long; those are kept in the order of that time."""
        self._next_look = None
        now = asyncio.get_running_loop().time()
        for handler in self.connections:
            before, taken = self._unread.get(handler), _taken(handler) if _unsent(handler) else None
            if before is not None and taken is not None and taken < before.taken + LEAST_READ_BYTES:
                if now - before.since >= UNREAD_SECONDS:
                    self._drop(handler)
                continue
            self._unread.pop(handler, None)
            if taken is not None:
                self._unread[handler] = _Unread(taken, now)
        if self.connections:
            self._look_later()


def _unsent(handler: web.RequestHandler) -> int:
    """Bytes of answers that wait in this process."""
    return 0 if handler.transport is None else handler.transport.get_write_buffer_size()


def _taken(handler: web.RequestHandler) -> int | None:
    """Bytes that the client's host has acknowledged: as it reads, and has room to receive; None if unknown.

    What waits here says less: the kernel takes megabytes before, and takes none while a slow client reads those.
    """
    connection: Any = None if handler.transport is None else handler.transport.get_extra_info("socket")
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        return int(_TCP_INFO.unpack(found)[0])
    except (AttributeError, OSError, struct.error):
        # Not everywhere, nor over other sockets.
        return None


def leaves_http(request: web.BaseRequest) -> bool:
    """Whether the client goes on in another protocol than HTTP, as far as aiohttp is concerned."""
    upgrade = request.headers.get("Upgrade", "").lower()
    return request.method == "CONNECT" or upgrade in _OTHER_PROTOCOLS
