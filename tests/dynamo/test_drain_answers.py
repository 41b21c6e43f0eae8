"""A frontend that drains says so as Dynamo's own does; the bodies are those of Dynamo's frontend beside it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from wavepp_worker.dynamo.drain_answers import drain_answer

from tests.support.proxied_frontend import proxy_before

SAID = {
    "/health": {"status": "not_ready", "stage": "draining", "message": "Service is not ready"},
    "/live": {"status": "shutting_down", "message": "Service is shutting down"},
    "/v1/models": {"message": "Service is not ready", "type": "Service Unavailable", "code": 503},
}
"""By ai-dynamo 1.4.2, whose frontend was told to stop while it answered a stream."""


def test_it_is_not_well_for_whoever_asks_and_goes_on_otherwise() -> None:
    async def well(request: web.BaseRequest) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def scenario() -> None:
        async with proxy_before(well) as (proxy, session):
            url = f"http://127.0.0.1:{proxy.port}"

            async def asked(path: str) -> tuple[int, Any]:
                async with session.get(url + path) as answer:
                    return answer.status, await answer.json()

            for path in SAID:
                assert await asked(path) == (200, {"status": "healthy"})
            proxy.upstream.refuse("the frontend was told to stop")
            for path, body in SAID.items():
                assert await asked(path) == (503, body)
                async with session.head(url + path) as answer:
                    assert (answer.status, await answer.read()) == (503, b"")
            assert (await asked("/openapi.json"))[0] == 200
            async with session.get(f"{url}/metrics") as answer:
                assert answer.status == 200

    asyncio.run(scenario())


def test_other_methods_and_paths_are_the_frontends() -> None:
    assert drain_answer("POST", "/health") is None
    assert drain_answer("GET", "/metrics") is None
