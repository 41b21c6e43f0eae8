"""Connections that send no request, or half of one, and others that want an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web
from wavepp_worker.dynamo import bounded_http_server
from wavepp_worker.dynamo.bounded_http_server import BoundedHttpServer
from wavepp_worker.dynamo.frontend import tls_context
from wavepp_worker.dynamo.log_budget import MOST_RECORDS, LogBudget

from tests.support.certificates import loopback_certificates

REQUEST = b"GET /x HTTP/1.1\r\nHost: here\r\n\r\n"
LENGTH = 32 << 20
"""Of an answer that no socket takes at once."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    if request.path == "/slow":
        await asyncio.sleep(0.5)
    if request.path == "/unread":
        return web.Response()
    if request.path == "/long":
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(LENGTH >> 20):
            await response.write(bytes(1 << 20))
        await response.write(b"end")
        return response
    return web.Response(text=f"{request.path} {len(await request.read())}")


@asynccontextmanager
async def served(
    most: int,
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = answer,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    runner = web.ServerRunner(BoundedHttpServer(handle, most, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
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
            assert await closed(idle[0], 5.0)
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
            assert await closed(connection, 5.0)

    asyncio.run(scenario())


def test_a_connection_is_kept_for_further_requests_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http_server, "IDLE_SECONDS", 1.0)

    async def scenario() -> None:
        async with served(8) as port:
            reader, writer = connection = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(REQUEST)
                assert b"200" in await asyncio.wait_for(reader.readuntil(b"/x 0"), 30)
            assert await closed(connection, 30.0)

    asyncio.run(scenario())


LONG = REQUEST.replace(b"/x", b"/long")


async def unread(port: int, tls: ssl.SSLContext | None = None) -> Connection:
    """A connection that has asked for a long answer, and reads its beginning alone."""
    connection = await asyncio.open_connection("127.0.0.1", port, limit=1024, ssl=tls)
    connection[1].write(LONG)
    assert b"200" in await asyncio.wait_for(connection[0].readline(), 5)
    return connection


def test_who_does_not_read_an_answer_makes_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep everybody else out, for as long as they like."""
    monkeypatch.setattr(bounded_http_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(bounded_http_server, "UNREAD_AT_LIMIT_SECONDS", 2.0)

    async def scenario() -> None:
        async with served(4) as port:
            kept = [await unread(port)]
            # On a busy machine the others' buffers may be full before its own.
            await asyncio.sleep(1.0)
            kept += [await unread(port) for _ in range(3)]
            assert await ask(port) == b"", "they may be about to read on"
            await asyncio.sleep(3.0)
            for _ in range(3):
                assert b"200" in await ask(port)
            ends = [await reads_whole(connection) for connection in kept]
            assert ends == [False, True, True, True], "the one that has not been read the longest is gone"

    asyncio.run(scenario())


async def reads_whole(connection: Connection) -> bool:
    """Whether the whole long answer comes."""
    rest = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(connection[0].read(1 << 20), 5):
            rest += piece
            if b"end" in rest[-32:]:
                return True
    return False


def test_an_answer_that_is_not_read_on_is_given_up_and_one_that_is_read_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_http_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(bounded_http_server, "UNREAD_SECONDS", 2.0)

    async def scenario() -> None:
        async with served(8) as port:
            slow, stuck = await unread(port), await unread(port)
            for _ in range(30):
                await asyncio.sleep(0.1)
                await slow[0].readexactly(LENGTH // 40)
            assert await reads_whole(slow)
            assert not await reads_whole(stuck)

    asyncio.run(scenario())


async def whole(request: web.BaseRequest) -> web.StreamResponse:
    """A long answer that is written after its handler has ended."""
    return (
        web.Response(body=bytes(LENGTH) + b"end") if request.path == "/long" else web.Response(text="short")
    )


def test_an_answer_is_read_to_its_end_also_where_no_handler_waits_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is silent then, which is no reason to cut it off, for time or for room."""
    monkeypatch.setattr(bounded_http_server, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(bounded_http_server, "LOOK_SECONDS", 0.05)

    async def scenario() -> None:
        async with served(2, whole) as port:
            slow = await unread(port)
            for _ in range(10):
                await asyncio.sleep(0.1)
                await slow[0].readexactly(LENGTH // 40)
                # The other connection that there may be is silent by turns.
                assert b"200" in await ask(port)
            assert await reads_whole(slow)

    asyncio.run(scenario())


def test_what_was_answered_and_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler waits for such a client any more, but its end of the answer is in this process."""
    monkeypatch.setattr(bounded_http_server, "UNREAD_SECONDS", 0.5)
    monkeypatch.setattr(bounded_http_server, "LOOK_SECONDS", 0.05)

    async def scenario() -> None:
        async with served(2, whole) as port:
            stuck = await unread(port)
            await asyncio.sleep(3.0)
            assert not await reads_whole(stuck)

    asyncio.run(scenario())


@pytest.mark.parametrize(("secure", "loop"), [(False, asyncio.new_event_loop), (True, uvloop.new_event_loop)])
def test_who_reads_slowly_is_not_taken_for_one_who_does_not(
    secure: bool,
    loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel keeps megabytes that were sent; while those are read, what waits here stays what it was."""
    monkeypatch.setattr(bounded_http_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(bounded_http_server, "UNREAD_SECONDS", 2.0)
    server_side = client_side = None
    if secure:
        authority, *own = loopback_certificates(tmp_path)
        server_side = tls_context((own[0], own[1]))
        client_side = ssl.create_default_context(cafile=str(authority))
    drops: list[web.RequestHandler] = []
    drop = BoundedHttpServer._drop

    def dropping(self: BoundedHttpServer, handler: web.RequestHandler) -> None:
        drops.append(handler)
        drop(self, handler)

    monkeypatch.setattr(BoundedHttpServer, "_drop", dropping)

    async def scenario() -> None:
        async with served(8, tls=server_side) as port:
            slow = await unread(port, client_side)
            for _ in range(30):
                await asyncio.sleep(0.1)
                await slow[0].readexactly(100_000)
            assert not drops
            for _ in range(100):
                if drops:
                    break
                await asyncio.sleep(0.1)
            assert drops, "it has stopped reading"
            slow[1].transport.abort()

    running = loop()
    running.run_until_complete(scenario())
    running.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_that_came_while_nobody_ran_here_is_answered(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http_server, "FIRST_REQUEST_SECONDS", 0.3)

    async def scenario() -> None:
        async with served(8) as port:
            silent = await asyncio.open_connection("127.0.0.1", port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.1)
            writer.write(REQUEST)
            time.sleep(0.5)
            assert b"200" in await asyncio.wait_for(reader.readline(), 5)
            assert await closed(silent, 5.0)

    running = loop()
    running.run_until_complete(scenario())
    running.close()


def test_who_leaves_keeps_no_connection_for_a_further_request() -> None:
    async def scenario() -> None:
        server = BoundedHttpServer(answer, 8, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def asked(connection: Connection, path: str = "/x") -> bytes:
            connection[1].write(REQUEST.replace(b"/x", path.encode()))
            head = await asyncio.wait_for(connection[0].readuntil(b"\r\n\r\n"), 5)
            await connection[0].readexactly(len(f"{path} 0"))
            return head.lower()

        try:
            new, kept, busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            assert b"connection: close" not in await asked(kept)
            answered = asyncio.create_task(asked(busy, "/slow"))
            await asyncio.sleep(0.1)
            server.leave()
            assert await closed(kept, 1.0)
            assert b"connection: close" in await answered
            assert await closed(busy, 1.0)
            assert not await closed(new, 0.1), "its request may be on its way"
            assert b"connection: close" in await asked(new)
            assert await closed(new, 1.0)
        finally:
            await runner.cleanup()

    asyncio.run(scenario())


def test_what_nobody_reads_of_a_body_in_chunks_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with served(8) as port:
            for size, ends in (("Transfer-Encoding: chunked", True), ("Content-Length: 100", False)):
                reader, writer = connection = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"POST /unread HTTP/1.1\r\nHost: a\r\n{size}\r\n\r\n1\r\n".encode())
                assert b"200" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
                assert await closed(connection, 10.0 if ends else 1.0) is ends
                writer.close()

    asyncio.run(scenario())


@pytest.fixture
def fresh_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bounded_http_server.logger, "filters", [LogBudget() for _ in bounded_http_server.logger.filters]
    )


@pytest.mark.usefixtures("fresh_budget")
@pytest.mark.parametrize(
    "head", ["CONNECT a:1 HTTP/1.1", "GET /x HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: WebSocket"]
)
def test_what_follows_a_request_to_leave_http_is_neither_read_nor_logged(
    head: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with served(8) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}\r\nHost: a\r\n\r\n".encode() + b"\x16\x03 GET\r\n\r\n" * 100)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            with contextlib.suppress(ConnectionError):
                # As not all was read that was sent, the end may be a reset.
                assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 30)

    asyncio.run(scenario())
    assert caplog.records == []


@pytest.mark.usefixtures("fresh_budget")
def test_clients_that_do_not_speak_http_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served(8) as port:
            for _ in range(3 * MOST_RECORDS):
                assert b" 400 " in await ask(port, b"GET /x HTTP/1.1\r\nno header\r\n\r\n")

    with caplog.at_level(logging.DEBUG, bounded_http_server.logger.name):
        asyncio.run(scenario())
    assert len(caplog.records) == MOST_RECORDS
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
