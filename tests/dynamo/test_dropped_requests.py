"""What Dynamo counts of requests that it drops is seen, also by a worker that cannot open a connection any more."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from wavepp_worker.dynamo.dropped_requests import HOST_VARIABLE, PORT_VARIABLE, DroppedRequests

from tests.chaos.injectors import limits


class Metrics:
    """What a worker shows of itself."""

    def __init__(self) -> None:
        self.text = ""
        self.connections: set[int] = set()

    def counted(self, dropped: int, others: int = 0) -> None:
        """As Dynamo writes it."""
        name, labels = "dynamo_component_errors_total", 'dynamo_component="backend",error_type='
        self.text = (
            f'{name}{{{labels}"response_stream",worker_id="a1"}} {dropped}\n'
            f'{name}{{{labels}"generate",worker_id="a1"}} {others}\n'
        )

    async def handle(self, request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername")[1])
        return web.Response(text=self.text)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Metrics, DroppedRequests]]:
    metrics = Metrics()
    runner = web.ServerRunner(web.Server(metrics.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    dropped = DroppedRequests({PORT_VARIABLE: str(runner.addresses[0][1]), HOST_VARIABLE: "0.0.0.0"})
    try:
        yield metrics, dropped
    finally:
        await dropped.close()
        await runner.cleanup()


def test_every_further_one_is_told_of_once_over_one_connection() -> None:
    async def scenario() -> None:
        async with served() as (metrics, dropped):
            assert not await dropped.more()
            metrics.counted(0, others=3)
            assert not await dropped.more()
            metrics.counted(2, others=3)
            with limits.few_descriptors(os.getpid(), 0):
                assert await dropped.more()
                assert not await dropped.more()
            metrics.counted(3, others=9)
            assert await dropped.more()
            assert len(metrics.connections) == 1

    asyncio.run(scenario())


def test_who_has_no_descriptor_to_look_with_may_have_dropped_some() -> None:
    async def scenario() -> None:
        async with served() as (_, dropped):
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            with limits.few_descriptors(os.getpid(), 0):
                assert await dropped.more()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
            assert not await dropped.more()

    asyncio.run(scenario())


def test_nothing_is_told_where_nothing_is_counted() -> None:
    async def scenario() -> None:
        for port in ({}, {PORT_VARIABLE: "0"}, {PORT_VARIABLE: "-1"}, {PORT_VARIABLE: "1"}):
            dropped = DroppedRequests(port)
            assert not await dropped.more()
            await dropped.close()

    asyncio.run(scenario())
