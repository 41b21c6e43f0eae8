"""Several choices of one request, through the proxy and a frontend that answers one at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from wavepp_worker.dynamo.choices import MOST_CHOICE_BYTES

from tests.support.proxied_frontend import proxy_before
from tests.support.waiting import WAIT_SECONDS

COMPLETIONS = "/v1/completions"


class OneChoice:
    """Answers with the seed it is asked with, in as many pieces as that is large; ``refused`` with a status.

    Those of ``waiting`` are not before ``goes_on``.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.refused: dict[int, int] = {}
        self.broken: set[int] = set()
        self.hanging: set[int] = set()
        self.waiting: set[int] = set()
        self.goes_on = asyncio.Event()
        self.left = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.Response(text="")
        assert "x-wavepp-choice" not in request.headers
        body = json.loads(await request.read())
        self.bodies.append(body)
        seed = body.get("seed", 1)
        if seed in self.waiting:
            await self.goes_on.wait()
        if seed in self.refused:
            return web.json_response({"message": f"no {seed}"}, status=self.refused[seed])
        usage = {"prompt_tokens": 4, "completion_tokens": seed, "total_tokens": 4 + seed}
        choice = {"index": 0, "text": f"{seed}", "finish_reason": "stop"}
        if not body.get("stream"):
            return web.json_response({"id": f"id{seed}", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number in range(seed):
                await self._send(
                    response, {"id": f"id{seed}", "choices": [{**choice, "text": f"{number}"}], "usage": None}
                )
                await asyncio.sleep(0.001)
            if seed in self.hanging:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if seed in self.broken:
            await self._send(response, {"error": {"message": "it broke", "code": 400}})
        else:
            await self._send(response, {"id": f"id{seed}", "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, value: Any) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")


def through(check: Callable[[OneChoice, aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    async def main() -> None:
        frontend = OneChoice()
        async with proxy_before(frontend.handle, handler_cancellation=True) as (proxy, session):
            await check(frontend, session, f"http://127.0.0.1:{proxy.port}{COMPLETIONS}")

    async def bounded() -> None:
        await asyncio.wait_for(main(), WAIT_SECONDS)

    asyncio.run(bounded())


ASKED = {"prompt": "x", "seed": 3, "n": 3}


def test_an_answer_has_all_choices_and_counts_the_prompt_once() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        headers = {"x-dynamo-request-id": "5f8b6c3e-3c55-4a8e-9d19-000000000001"}
        async with session.post(url, json=ASKED, headers=headers) as answer:
            assert answer.status == 200
            got = await answer.json()
        assert [(choice["index"], choice["text"]) for choice in got["choices"]] == [
            (0, "3"),
            (1, "4"),
            (2, "5"),
        ]
        assert got["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
        assert sorted(body["seed"] for body in frontend.bodies) == [3, 4, 5]
        assert all("n" not in body for body in frontend.bodies)
        async with session.get(url.replace(COMPLETIONS, "/metrics")) as answer:
            told = await answer.text()
        assert f'wavepp_http_responses_total{{code="200",path="{COMPLETIONS}"}} 1.0' in told, "one answer"

    through(check)


def test_a_stream_has_the_pieces_of_all_and_ends_once() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(url, json={**ASKED, "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            events = [event[6:] for event in (await answer.text()).split("\n\n") if event]
        assert events.pop() == "[DONE]"
        pieces = [json.loads(event) for event in events]
        assert len({piece["id"] for piece in pieces}) == 1
        texts = {
            index: [c["text"] for p in pieces for c in p["choices"] if c["index"] == index]
            for index in range(3)
        }
        assert texts == {index: [str(number) for number in range(3 + index)] for index in range(3)}
        assert [piece["usage"]["completion_tokens"] for piece in pieces if piece["usage"]] == [12]
        assert pieces[-1]["choices"] == []

    through(check)


@pytest.mark.parametrize("stream", [False, True])
def test_what_one_is_refused_with_is_the_answer_where_nothing_has_begun(stream: bool) -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        frontend.refused = {4: 418}
        frontend.waiting = {3, 5} if stream else set()
        async with session.post(url, json={**ASKED, "stream": stream}) as answer:
            assert (answer.status, await answer.json()) == (418, {"message": "no 4"})

    through(check)


def test_a_stream_begins_although_a_choice_has_to_wait_and_ends_if_that_is_refused() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        frontend.waiting, frontend.refused, frontend.hanging = {4}, {4: 418}, {3, 5}
        async with session.post(url, json={**ASKED, "stream": True}) as answer:
            assert (await answer.content.readline()).startswith(b'data: {"id"')
            frontend.goes_on.set()
            rest = await answer.text()
        assert rest.count('"no 4"') == 1
        assert '"code": 418' in rest
        assert rest.endswith("data: [DONE]\n\n")
        while frontend.left < 2:
            await asyncio.sleep(0.01)

    through(check)


def test_more_than_may_be_asked_for_all_choices_is_refused_before_any_is() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        prompt = "x" * (MOST_CHOICE_BYTES // 128)
        async with session.post(url, json={"prompt": prompt, "n": 128}) as answer:
            assert answer.status == 400
            assert "128 choices of a body" in (await answer.json())["message"]
        assert not frontend.bodies

    through(check)


def test_a_choice_that_breaks_ends_the_stream_with_its_error() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        frontend.broken, frontend.hanging = {4}, {3, 5}
        async with session.post(url, json={**ASKED, "stream": True}) as answer:
            text = await answer.text()
        assert text.count("it broke") == 1
        assert text.endswith("data: [DONE]\n\n")
        while frontend.left < 2:
            await asyncio.sleep(0.01)

    through(check)


def test_a_client_that_leaves_takes_all_choices_with_it() -> None:
    async def check(frontend: OneChoice, session: aiohttp.ClientSession, url: str) -> None:
        frontend.hanging = {3, 4, 5}
        answer = await session.post(url, json={**ASKED, "stream": True})
        await answer.content.readany()
        answer.close()
        while frontend.left < 3:
            await asyncio.sleep(0.01)

    through(check)
