"""Bodies that arrive at once, stop on their way, or stay while their requests are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest import mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request
from wavepp_worker.dynamo import request_bodies
from wavepp_worker.dynamo.request_bodies import BodyRefused, RequestBodies


def served(check: Callable[[Callable[..., asyncio.Task[int]]], Awaitable[None]], most: int) -> None:
    """``check`` gets how to send ``sent`` bytes of a body of ``size``; 200 is what is said after ``pause`` seconds."""

    async def main() -> None:
        bodies = RequestBodies(most)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            try:
                async with bodies.body(request):
                    await asyncio.sleep(float(request.query.get("pause", 0)))
                    return web.Response()
            except BodyRefused as error:
                return web.Response(status=error.status, text=str(error))

        runner = web.ServerRunner(web.Server(answer, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def send(size: int, sent: int | None = None, pause: float = 0.0) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                head = f"POST /?pause={pause} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
                writer.write(head.encode() + bytes(size if sent is None else sent))
                return int((await reader.readline()).split()[1])
            finally:
                writer.close()

        try:
            await asyncio.wait_for(check(lambda *args: asyncio.create_task(send(*args))), 20)
        finally:
            await runner.cleanup()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def few_bytes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "LARGE_BODY_BYTES", 100)


def test_a_large_body_takes_the_room_of_those_that_arrive_longest() -> None:
    async def check(send: Callable[..., asyncio.Task[int]]) -> None:
        stalled = []
        for _ in range(3):
            stalled.append(send(1000, 300))
            await asyncio.sleep(0.1)
        assert await send(600) == 200
        assert [await each for each in stalled[:2]] == [503, 503]
        assert not stalled[2].done()
        # What gave way, and what was answered, takes no room any more.
        assert await send(700) == 200
        assert not stalled[2].done()
        stalled[2].cancel()

    served(check, 1000)


def test_bodies_of_requests_that_are_being_answered_stay_and_small_ones_always_find_room() -> None:
    async def check(send: Callable[..., asyncio.Task[int]]) -> None:
        answered = [send(500, None, 1.0), send(400, None, 1.0)]
        await asyncio.sleep(0.3)
        assert await send(500) == 503
        assert await send(99) == 200
        assert await send(100) == 200
        assert [await each for each in answered] == [200, 200]
        assert await send(1000) == 200

    served(check, 1000)


def test_a_client_that_leaves_gives_its_room_back() -> None:
    async def check(send: Callable[..., asyncio.Task[int]]) -> None:
        for pause in (0.0, 5.0):
            leaving = send(1000, 900 if not pause else None, pause)
            await asyncio.sleep(0.2)
            leaving.cancel()
            await asyncio.sleep(0.2)
            assert await send(1000) == 200

    served(check, 1000)


def test_a_body_of_many_small_chunks_lets_others_pass() -> None:
    """To read all that is there takes seconds; the launcher ends a frontend that does not say in time that it lives."""

    async def main() -> None:
        content = StreamReader(mock.Mock(_reading_paused=False), 1 << 16, loop=asyncio.get_running_loop())
        for _ in range(1000):
            content.begin_http_chunk_receiving()
            content.feed_data(b"x")
            content.end_http_chunk_receiving()
        content.feed_eof()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(other())
        async with RequestBodies().body(make_mocked_request("POST", "/", payload=content)) as body:
            assert body == b"x" * 1000
        assert turns >= 15
        others.cancel()

    asyncio.run(main())
