"""The HTTP server in front of Dynamo's frontend.

It refuses what ``openai_checks`` finds, with status 400 and a sentence, and passes everything else through
unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from aiohttp import web

from wavepp_worker.dynamo.openai_checks import CHECKED_PATHS, refusal
from wavepp_worker.errors import ConfigError

MOST_BODY_BYTES = 64 << 20
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
)


class FrontendProxy:
    """The HTTP server in front of the frontend."""

    def __init__(self, upstream: str, vocab_size: int | None) -> None:
        """Prepare a proxy; it does not listen yet.

        Args:
            upstream: base URL of the frontend.
            vocab_size: token ids are below it; None if unknown.
        """
        self._upstream = upstream
        self._vocab_size = vocab_size
        self._session: aiohttp.ClientSession | None = None
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away ends its handler and thereby the request to the frontend, which cancels it.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: the port cannot be bound.
        """
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"--http-port: cannot listen on {host}:{port} ({error.strerror}); choose a free port"
            ) from error

    async def close(self) -> None:
        """Stop listening; idempotent, also if never started."""
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "POST" and request.path in CHECKED_PATHS:
            sentence = refusal(request.path, _decode(body), self._vocab_size)
            if sentence is not None:
                return _refused(400, "Bad Request", sentence)
        assert self._session is not None
        headers = [(key, value) for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP]
        try:
            async with self._session.request(
                request.method,
                self._upstream + request.raw_path,
                headers=headers,
                data=body or None,
                allow_redirects=False,
            ) as answer:
                return await _relay(request, answer)
        except aiohttp.ClientConnectorError:
            return _refused(503, "Service Unavailable", "the frontend is not up yet; try again shortly")


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    if answer.status == 404 and answer.content_length == 0 and request.path in CHECKED_PATHS:
        # A frontend that has just started has no such path until it has found a worker.
        sentence = "the frontend has not found a worker yet; try again shortly"
        return _refused(503, "Service Unavailable", sentence)
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for key, value in answer.headers.items():
        if key.lower() not in _HOP_BY_HOP:
            response.headers.add(key, value)
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


def _refused(status: int, kind: str, sentence: str) -> web.Response:
    # The shape of the frontend's own refusals.
    return web.json_response({"message": sentence, "type": kind, "code": status}, status=status)


def _decode(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        # The frontend says best what is wrong with it.
        return None
