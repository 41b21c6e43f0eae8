"""Our proxy before a frontend that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from wavepp_worker.dynamo.frontend_proxy import FrontendProxy

FAILED = {"message": "Failed to fold completions stream for 7", "type": "Internal Server Error", "code": 500}
NOT_READY = "Model m is not ready to serve requests yet. The deployment may still be starting up. Please retry shortly."
BROKEN = b'data: {"error":{"message":"Internal server error","type":"internal_server_error","code":500}}\n\n'
GONE = b'data: {"error":{"message":"Service temporarily unavailable","type":"service_unavailable","code":503}}\n\n'
UNAVAILABLE = 1503
"""A step: 503 as Dynamo 1.6 says it of a worker that failed under a request."""
WRONG = b'data: {"error":{"message":"no such tool","type":"invalid_request_error","code":400}}\n\n'
ONE, TWO, DONE = b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n', b"data: [DONE]\n\n"


class Frontend:
    """Answers as it is told: with a status, or with pieces of a stream; ``None`` among them waits for ever."""

    def __init__(self) -> None:
        self.script: list[int | list[bytes | None]] = []
        self.asked = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.asked += 1
        step = self.script.pop(0)
        if isinstance(step, int):
            if step == 200:
                return web.json_response({"text": "right"})
            if step == 404:
                return web.Response(status=404)
            if step == UNAVAILABLE:
                return web.json_response({"message": "Service temporarily unavailable"}, status=503)
            return web.json_response(FAILED if step == 500 else {"message": NOT_READY}, status=step)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in step:
            if piece is None:
                await asyncio.Event().wait()
            else:
                await response.write(piece)
        return response


class Client:
    """Asks through the proxy."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def ask(self, begun: asyncio.Event | None = None) -> tuple[int, str]:
        """Status and body. ``begun`` is set once the first piece of the body is here."""
        async with self._session.post(f"{self._url}/v1/completions", json={"prompt": "a"}) as answer:
            first = await answer.content.readany()
            if begun is not None:
                begun.set()
            return answer.status, (first + await answer.content.read()).decode()


@asynccontextmanager
async def proxy_before(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    migrations: int = 0,
    *,
    extensions: bool = True,
    **server: Any,
) -> AsyncIterator[tuple[FrontendProxy, aiohttp.ClientSession]]:
    """A proxy, and a client's session.

    Args:
        handle: answers as the frontend.
        migrations: how often a request may go to another worker.
        extensions: whether the frontend hands ``nvext`` on.
        server: further arguments of ``web.Server``.
    """
    runner = web.ServerRunner(web.Server(handle, **server), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    proxy = FrontendProxy(url, 100, migrations=migrations, extensions=extensions)
    await proxy.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            yield proxy, session
    finally:
        await proxy.close()
        await runner.cleanup()


@asynccontextmanager
async def proxied(migrations: int = 0) -> AsyncIterator[tuple[Frontend, FrontendProxy, Client]]:
    frontend = Frontend()
    async with proxy_before(frontend.handle, migrations) as (proxy, session):
        yield frontend, proxy, Client(session, f"http://127.0.0.1:{proxy.port}")
