from __future__ import annotations

import asyncio
import time

import pytest
from wavepp_worker.errors import ConfigError, QueueError
from wavepp_worker.intake import opening
from wavepp_worker.intake.opening import open_soon


class Server:
    """Does what it is told to when a queue is to be opened."""

    def __init__(self, *failures: Exception) -> None:
        self.there = asyncio.Event()
        self.failures = list(failures)

    async def attempt(self) -> None:
        await self.there.wait()
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.05)
    monkeypatch.setattr(opening, "AGAIN_SECONDS", 0.01)


def test_a_server_that_is_there_is_waited_for() -> None:
    async def run() -> None:
        server = Server()
        server.there.set()
        assert (await open_soon(server.attempt, "")).done()

    asyncio.run(run())


def test_one_that_is_not_there_is_tried_on_whatever_it_says_at_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        server = Server(ConfigError("no JetStream"), ConfigError("no JetStream"), OSError("gone"))
        begun = time.monotonic()
        task = await open_soon(server.attempt, "; nothing is taken")
        assert not task.done()
        assert time.monotonic() - begun < 5
        server.there.set()
        await asyncio.wait_for(task, 5)

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records]
    assert [sentence.partition("(")[2] for sentence in said] == [
        "no JetStream), and tried again; nothing is taken",
        "gone), and tried again; nothing is taken",
    ]


def test_one_of_no_use_is_refused_at_the_start_and_one_that_fails_is_not() -> None:
    async def run() -> None:
        server = Server(QueueError("busy"), ConfigError("no JetStream"))
        server.there.set()
        with pytest.raises(ConfigError, match="no JetStream"):
            await open_soon(server.attempt, "")

    asyncio.run(run())


@pytest.mark.parametrize("settling", [True, False])
def test_what_others_at_the_queue_say_is_waited_for_where_the_server_is_there(settling: bool) -> None:
    async def run() -> bool:
        server, event = Server(ConfigError("other weights")), asyncio.Event()

        async def attempt() -> None:
            if settling:
                event.set()
            await server.attempt()

        asyncio.get_running_loop().call_later(0.3, server.there.set)
        try:
            task = await open_soon(attempt, "", event)
        except ConfigError:
            return True
        task.cancel()
        return False

    assert asyncio.run(run()) == settling


def test_others_that_never_say_who_they_are_hold_up_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SETTLE_SECONDS", 0.2)

    async def run() -> None:
        event = asyncio.Event()
        event.set()
        task = await asyncio.wait_for(open_soon(Server().attempt, "", event), 5)
        assert not task.done()
        task.cancel()

    asyncio.run(run())


def test_a_server_that_goes_away_while_others_are_asked_holds_up_no_start() -> None:
    async def run() -> None:
        event, attempts = asyncio.Event(), 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                await asyncio.sleep(60)
            event.set()
            await asyncio.sleep(0.3)
            raise OSError("gone")

        task = await asyncio.wait_for(open_soon(attempt, "", event), 5)
        assert not task.done()
        task.cancel()

    asyncio.run(run())


def test_who_gives_up_the_start_leaves_nothing_running() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def attempt() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        start = asyncio.create_task(open_soon(attempt, ""))
        await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert ended.is_set()

    asyncio.run(run())
