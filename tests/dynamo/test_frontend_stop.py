"""A frontend that is told to stop, with answers on their way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from wavepp_worker.dynamo.frontend_stop import FrontendLoop, FrontendStop

from tests.support.proxied_frontend import DONE, ONE, TWO, proxied


def test_who_is_told_to_stop_ends_its_answers_first(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, proxy, client):
            ended = asyncio.Event()
            frontend.script = [[ONE, TWO, DONE]]
            FrontendStop(proxy, 60).give(ended.set)
            await asyncio.wait_for(ended.wait(), 10)
            assert "told to stop and takes no more" in (await client.ask())[1]
            assert frontend.asked == 0

    asyncio.run(scenario())
    assert capfd.readouterr().err == "LEAVING: told to stop; nothing to wait for\n"


def test_clients_are_to_open_new_connections_from_the_order_on() -> None:
    """Who goes on asking over the same one would meet its end with a request, and not know whether that was run."""

    async def scenario() -> None:
        async with proxied() as (frontend, proxy, client):
            frontend.script = [[ONE, None], 200, 200]
            begun, ended = asyncio.Event(), asyncio.Event()
            stream = asyncio.create_task(client.ask(begun))
            await asyncio.wait_for(begun.wait(), 10)

            async def connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await asyncio.open_connection("127.0.0.1", proxy.port)

            async def head(path: str, over: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
                over[1].write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                return await asyncio.wait_for(over[0].readuntil(b"\r\n\r\n"), 10)

            kept = await connection()
            assert b"Connection: close" not in await head("/v1/models", kept)
            order = FrontendStop(proxy, 60)
            order.give(ended.set)
            await asyncio.wait_for(kept[0].read(), 10)
            for path, status in (("/v1/models", b" 503 "), ("/openapi.json", b" 200 ")):
                said = await head(path, new := await connection())
                assert status in said
                assert b"Connection: close" in said
                await asyncio.wait_for(new[0].read(), 10)
            order.give(ended.set)
            await asyncio.wait_for(ended.wait(), 10)
            await stream

    asyncio.run(scenario())


@pytest.mark.parametrize("hurry", [False, True], ids=["time is over", "a second order"])
def test_what_has_too_little_time_to_end_is_told_so(
    hurry: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wavepp_worker.dynamo.frontend_stop.TELL_SECONDS", 0.1)

    async def scenario() -> None:
        async with proxied() as (frontend, proxy, client):
            ended = asyncio.Event()
            frontend.script = [[ONE, None], [None]]
            begun = asyncio.Event()
            stream = asyncio.create_task(client.ask(begun))
            await asyncio.wait_for(begun.wait(), 10)
            silent = asyncio.create_task(client.ask())
            while frontend.asked < 2:
                await asyncio.sleep(0.01)
            order = FrontendStop(proxy, 60 if hurry else 0.5)
            order.give(ended.set)
            if hurry:
                order.give(ended.set)
            await asyncio.wait_for(ended.wait(), 30)
            status, text = await stream
            assert status == 200
            assert text.startswith(
                ONE.decode() + 'data: {"error": {"message": "the frontend was told to stop'
            )
            status, text = await silent
            assert status == 503
            assert "this request had" in text

    asyncio.run(scenario())
    said = capfd.readouterr().err
    assert said.startswith(
        f"LEAVING: told to stop; waiting for 2 answers, for at most {60 if hurry else 0} s\n"
    )
    assert ("still waiting for 2 answers" in said) is not hurry
    assert "2 answers had too little time" in said


def test_whoever_listens_for_signals_waits_for_the_order_once_there_is_one() -> None:
    class Order:
        def __init__(self) -> None:
            self.given: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()

        def give(self, then: Callable[[], Any]) -> None:
            self.given.put_nowait(then)

    async def scenario() -> None:
        loop: Any = asyncio.get_running_loop()
        heard: asyncio.Queue[str] = asyncio.Queue()
        loop.add_signal_handler(signal.SIGUSR1, heard.put_nowait, "now")
        os.kill(os.getpid(), signal.SIGUSR1)
        assert await asyncio.wait_for(heard.get(), 10) == "now"
        loop.order = order = Order()
        os.kill(os.getpid(), signal.SIGUSR1)
        then = await asyncio.wait_for(order.given.get(), 10)
        assert heard.empty()
        then()
        assert heard.get_nowait() == "now"

    uvloop.run(scenario(), loop_factory=FrontendLoop)
