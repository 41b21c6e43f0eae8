"""An HTTP server that clients who send no request or read no answer cannot fill, nor their bytes its log."""

from __future__ import annotations

import asyncio
import logging
import resource
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
"""How long a client may read nothing of an answer that waits for it to do so."""
UNREAD_AT_LIMIT_SECONDS = 5.0
"""The same while a new connection finds no room."""
LOOK_SECONDS = 1.0
"""Between two looks at who reads."""

_OTHER_PROTOCOLS = ("websocket", "tcp")
"""All that aiohttp leaves HTTP for; it goes on where a client offers others, such as curl does HTTP/2."""


@dataclass
class _Unread:
    """An answer that its client did not read on when it was last looked at.

    Attributes:
        size: bytes that wait in this process.
        since: on the loop's clock, when they last became fewer.
    """

    size: int
    since: float


class BoundedHttpServer(web.Server):
    """Hands each request to ``handle``; connections that have none being answered are *silent*.

    A silent connection is closed after a while, and so is one whose client does not read its answer. Where there are
    too many connections, room is made at once: by the longest silent one, else by the one that has not been read the
    longest, else a new one is closed.
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
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._unread: dict[web.RequestHandler, _Unread] = {}
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._await_request(handler, FIRST_REQUEST_SECONDS)
        if len(self.connections) > self._most:
            self._drop(self._dispensable())
        if self._next_look is None:
            self._look_later()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        self._unread.pop(handler, None)
        super().connection_lost(handler, exc)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        self._forget(handler)
        try:
            response = await self._handle(request)
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
        self._silent[handler] = asyncio.get_running_loop().call_later(seconds, self._drop, handler)

    def _forget(self, handler: web.RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def _dispensable(self) -> web.RequestHandler:
        if len(self._silent) == 1 and self._unread:
            # All but the new one are being answered.
            handler, unread = next(iter(self._unread.items()))
            if asyncio.get_running_loop().time() - unread.since >= UNREAD_AT_LIMIT_SECONDS:
                return handler
        return next(iter(self._silent))

    def _drop(self, handler: web.RequestHandler) -> None:
        self._forget(handler)
        transport = handler.transport
        handler.force_close()
        if transport is not None and transport.get_write_buffer_size():
            # Else it would stay until its client has read everything.
            transport.abort()

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """See who reads on, and drop who has not for too long; those are kept in the order of that time."""
        self._next_look = None
        now = asyncio.get_running_loop().time()
        for handler in self.connections:
            transport = handler.transport
            waits = transport is not None and handler.writing_paused
            size = transport.get_write_buffer_size() if transport is not None and waits else 0
            before = self._unread.get(handler)
            if before is not None and size >= before.size:
                before.size = size
                if now - before.since >= UNREAD_SECONDS:
                    self._drop(handler)
                continue
            self._unread.pop(handler, None)
            if size:
                self._unread[handler] = _Unread(size, now)
        if self.connections:
            self._look_later()


def leaves_http(request: web.BaseRequest) -> bool:
    """Whether the client goes on in another protocol than HTTP, as far as aiohttp is concerned."""
    upgrade = request.headers.get("Upgrade", "").lower()
    return request.method == "CONNECT" or upgrade in _OTHER_PROTOCOLS
