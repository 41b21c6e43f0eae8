"""Connections that send no request, or half of one, and others that want an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from wavepp_worker.dynamo import bounded_http_server
from wavepp_worker.dynamo.bounded_http_server import BoundedHttpServer

REQUEST = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    if request.path == "/slow":
        await asyncio.sleep(0.5)
    if request.path == "/unread":
        return web.Response()
    return web.Response(text=f"{request.path} {len(await request.read())}")


@asynccontextmanager
async def served(most: int) -> AsyncIterator[int]:
    runner = web.ServerRunner(BoundedHttpServer(answer, most, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def ask(port: int, request: bytes = REQUEST) -> bytes:
    """The answer's first line; empty if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.readline(), 5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def closed(connection: Connection, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(connection[0].read(), seconds) == b""
    except ConnectionError:
        return True
    except asyncio.TimeoutError:
        return False


def test_silent_connections_make_room_the_longest_silent_first() -> None:
    async def scenario() -> None:
        async with served(8) as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for _ in range(3):
                assert b"200" in await ask(port)
            assert await closed(idle[0], 1.0)
            assert not await closed(idle[-1], 0.1)

    asyncio.run(scenario())


def test_a_flood_of_silent_connections_hurts_nobody_who_asks() -> None:
    async def scenario() -> None:
        async with served(16) as port:
            slow = asyncio.create_task(ask(port, REQUEST.replace(b"/x", b"/slow")))
            await asyncio.sleep(0.1)
            idle = []
            for _ in range(100):
                idle.append(await asyncio.open_connection("127.0.0.1", port))
                idle[-1][1].write(b"GET /x HTTP")
            assert b"200" in await ask(port)
            assert b"200" in await slow

    asyncio.run(scenario())


def test_where_all_are_being_answered_a_new_connection_is_closed() -> None:
    async def scenario() -> None:
        async with served(2) as port:
            slow = [asyncio.create_task(ask(port, REQUEST.replace(b"/x", b"/slow"))) for _ in range(2)]
            await asyncio.sleep(0.2)
            assert await ask(port) == b""
            assert all(b"200" in line for line in await asyncio.gather(*slow))
            assert b"200" in await ask(port)

    asyncio.run(scenario())


def test_half_a_head_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http_server, "FIRST_REQUEST_SECONDS", 0.3)

    async def scenario() -> None:
        async with served(8) as port:
            connection = await asyncio.open_connection("127.0.0.1", port)
            connection[1].write(REQUEST[:10])
            assert not await closed(connection, 0.1)
            assert await closed(connection, 1.0)

    asyncio.run(scenario())


def test_a_connection_is_kept_for_further_requests_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http_server, "IDLE_SECONDS", 0.3)

    async def scenario() -> None:
        async with served(8) as port:
            reader, writer = connection = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(REQUEST)
                assert b"200" in await asyncio.wait_for(reader.readuntil(b"/x 0"), 5)
            assert await closed(connection, 1.0)

    asyncio.run(scenario())


def test_what_nobody_reads_of_a_body_in_chunks_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with served(8) as port:
            for size, ends in (("Transfer-Encoding: chunked", True), ("Content-Length: 100", False)):
                reader, writer = connection = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"POST /unread HTTP/1.1\r\nHost: a\r\n{size}\r\n\r\n1\r\n".encode())
                assert b"200" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
                assert await closed(connection, 1.0) is ends
                writer.close()

    asyncio.run(scenario())
