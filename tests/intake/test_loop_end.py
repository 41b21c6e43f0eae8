"""Loops that end have nothing left in them."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from wavepp_worker.intake import loop_end
from wavepp_worker.intake.loop_end import end_loop


def test_what_still_waits_ends_before_its_loop() -> None:
    loop, ended = asyncio.new_event_loop(), []

    async def wait(name: str) -> None:
        try:
            await asyncio.Queue[None]().get()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for name in ("one", "two"):
        asyncio.run_coroutine_threadsafe(wait(name), loop)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
    end_loop(loop, thread)
    assert not thread.is_alive()
    assert loop.is_closed()
    assert set(ended) == {"one", "two"}


def test_a_loop_in_which_nothing_waits_is_closed() -> None:
    loop = asyncio.new_event_loop()
    end_loop(loop, threading.Thread())
    assert loop.is_closed()
    end_loop(loop, threading.Thread())


def test_nothing_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_end, "LAST_SECONDS", 0.1)
    loop, over = asyncio.new_event_loop(), []

    async def stay() -> None:
        while not over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(stay())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    closing = threading.Thread(target=end_loop, args=(loop, threading.Thread()))
    closing.start()
    closing.join(5)
    assert not closing.is_alive()
    assert loop.is_closed()
    assert not task.done()
    # Its coroutine may not be left to the collector.
    over.append(True)
    with contextlib.suppress(RuntimeError, StopIteration):
        task.get_coro().close()  # type: ignore[union-attr]
