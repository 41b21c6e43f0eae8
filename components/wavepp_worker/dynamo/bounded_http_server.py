"""An HTTP server that connections without a request cannot fill, nor their bytes its log."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
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

_OTHER_PROTOCOLS = ("websocket", "tcp")
"""All that aiohttp leaves HTTP for; it goes on where a client offers others, such as curl does HTTP/2."""


class BoundedHttpServer(web.Server):
    """Hands each request to ``handle``; connections that have none being answered are *silent*.

    A silent connection is closed after a while, and the longest silent one at once where there are too many
    connections. Where all are being answered, a new one is closed.
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

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._await_request(handler, FIRST_REQUEST_SECONDS)
        if len(self.connections) > self._most:
            # The first is the longest silent; where all others are being answered, it is the new one.
            self._drop(next(iter(self._silent)))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
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

    def _drop(self, handler: web.RequestHandler) -> None:
        self._forget(handler)
        handler.force_close()


def leaves_http(request: web.BaseRequest) -> bool:
    """Whether the client goes on in another protocol than HTTP, as far as aiohttp is concerned."""
    upgrade = request.headers.get("Upgrade", "").lower()
    return request.method == "CONNECT" or upgrade in _OTHER_PROTOCOLS
