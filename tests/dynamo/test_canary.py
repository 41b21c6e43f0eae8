from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wavepp_worker.dynamo.canary import PROOF_SECONDS, Canary
from wavepp_worker.errors import EngineDead
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.fake_engines import FakePrefillEngine

REQUEST = PrefillRequest.of("what the canary calls it", [0])


class Bench:
    """A canary at an engine that answers after ``delay`` seconds, and a clock."""

    def __init__(self, delay: float = 0.01) -> None:
        self.deaths: list[str] = []
        self.engine: Any = FakePrefillEngine(None, on_death=self.deaths.append)
        self.engine.delay = delay
        self.now = 0.0
        self.canary = Canary(self.engine, lambda: self.now)

    def probes(self) -> list[str]:
        assert all(request.probe and not request.handoff for request in self.engine.requests)
        return [request.request_id for request in self.engine.requests]


def run(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(check(), 30))


def test_an_idle_engine_prefills_a_token_now_and_then() -> None:
    bench = Bench()

    async def check() -> None:
        for _ in range(5):
            await bench.canary.prove(REQUEST)
        assert bench.probes() == ["canary-0"]
        bench.now += PROOF_SECONDS
        await bench.canary.prove(REQUEST)
        assert bench.probes() == ["canary-0", "canary-1"]

    run(check)


def test_behind_a_queue_of_long_prompts_a_canary_is_answered_at_once() -> None:
    """A false alarm would kill a replica for being busy."""
    bench = Bench(delay=20.0)

    async def check() -> None:
        bench.engine.submit(PrefillRequest.of("long", [1] * 100))
        await asyncio.wait_for(bench.canary.prove(REQUEST), 1)
        assert [request.request_id for request in bench.engine.requests] == ["long"]

    run(check)


def test_canaries_that_come_while_one_is_out_share_its_fate() -> None:
    """The second must not say that all is well only because the first keeps the engine from being idle."""
    bench = Bench(delay=60.0)

    async def check() -> None:
        first = asyncio.create_task(bench.canary.prove(REQUEST))
        await asyncio.sleep(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(bench.canary.prove(REQUEST), 0.05)
        first.cancel()
        third = asyncio.create_task(bench.canary.prove(REQUEST))
        await asyncio.sleep(0.05)
        assert not third.done()
        assert bench.engine.aborted == [], "who gives up does not end what the others wait for"
        assert bench.probes() == ["canary-0"]
        bench.engine.die("rank 1 was ended by SIGKILL")
        with pytest.raises(EngineDead, match="rank 1"):
            await third
        with pytest.raises(EngineDead, match="not running"):
            await bench.canary.prove(REQUEST)

    run(check)
