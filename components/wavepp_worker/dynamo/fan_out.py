"""Asks for each choice of a request by itself, through the proxy's own door, and answers with all of them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from wavepp_worker.dynamo.choices import Choices, one_choice
from wavepp_worker.dynamo.upstream import HOP_BY_HOP

_PIECES_AHEAD = 64
"""Of all choices together that are there and not sent: a client that reads slowly slows them down."""
CHOICE_HEADER = "x-wavepp-choice"
"""Marks a request that is part of another one."""
_NOT_PASSED_ON = HOP_BY_HOP | {"x-dynamo-request-id", "accept-encoding"}
"""Among headers: an id is one request's."""


class FanOut:
    """Asks a server for choices. To be opened and closed in a running loop."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    async def open(self, url: str) -> None:
        """``url``: of the server, without a path."""
        self._url = url
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )

    async def close(self) -> None:
        """Ask nothing more; idempotent."""
        if self._session is not None:
            await self._session.close()

    def asked(self, request: web.BaseRequest) -> bool:
        """Whether a request is one of those that this has made."""
        return secrets.compare_digest(request.headers.get(CHOICE_HEADER, "").encode(), self._mark.encode())

    async def answer(self, request: web.BaseRequest, body: dict[str, Any], count: int) -> web.StreamResponse:
        """The answer with ``count`` choices for each prompt; the first refusal or error, if there is one."""
        answers: list[aiohttp.ClientResponse] = []
        asked = [asyncio.ensure_future(self._ask(request, body, number)) for number in range(count)]
        try:
            for each in asyncio.as_completed(asked):
                answers.append(await each)
                if answers[-1].status != 200:
                    refused = answers[-1]
                    kind = refused.headers.get("Content-Type", "application/json")
                    return web.Response(
                        status=refused.status, body=await refused.read(), headers={"Content-Type": kind}
                    )
            in_order = [each.result() for each in asked]
            if in_order[0].content_type == "text/event-stream":
                return await _stream(request, in_order)
            merged = Choices(count).merged([await each.json() for each in in_order])
            return web.json_response(merged)
        finally:
            for each in asked:
                each.cancel()
            for answer in answers:
                answer.close()

    async def _ask(
        self, request: web.BaseRequest, body: dict[str, Any], number: int
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _NOT_PASSED_ON}
        headers[CHOICE_HEADER] = self._mark
        return await self._session.post(
            self._url + request.path, data=one_choice(body, number), headers=headers
        )


async def _stream(request: web.BaseRequest, answers: list[aiohttp.ClientResponse]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    choices = Choices(len(answers))
    pieces: asyncio.Queue[tuple[int, bytes | None]] = asyncio.Queue(_PIECES_AHEAD)
    readers = [asyncio.ensure_future(_read(number, answer, pieces)) for number, answer in enumerate(answers)]
    usage: dict[str, Any] | None = None
    left = len(answers)
    try:
        while left:
            number, event = await pieces.get()
            if event is None:
                left -= 1
                continue
            piece = _piece(event)
            if piece is None:
                await response.write(event + b"\n\n")
                if b'"error"' in event:
                    # The others' pieces would make no whole answer any more.
                    break
                continue
            piece = choices.piece(piece, number)
            if piece["choices"]:
                await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            elif piece.get("usage") is not None:
                usage = piece
        if usage is not None and not left:
            await response.write(
                b"data: " + json.dumps({**usage, "usage": choices.usage()}).encode() + b"\n\n"
            )
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
    finally:
        for reader in readers:
            reader.cancel()


async def _read(
    number: int, answer: aiohttp.ClientResponse, pieces: asyncio.Queue[tuple[int, bytes | None]]
) -> None:
    try:
        async for event in _events(answer):
            if event != b"data: [DONE]":
                await pieces.put((number, event))
    except aiohttp.ClientError as error:
        text = json.dumps({"error": {"message": str(error), "type": "service_unavailable", "code": 503}})
        await pieces.put((number, b"data: " + text.encode()))
    await pieces.put((number, None))


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The events of a stream, without the empty lines between them."""
    held = b""
    async for data in answer.content.iter_any():
        *whole, held = (held + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            if event.strip():
                yield event
    if held.strip():
        yield held


def _piece(event: bytes) -> dict[str, Any] | None:
    """The JSON of an event that continues an answer; None if it does something else."""
    if not event.startswith(b"data: "):
        return None
    try:
        value = json.loads(event.removeprefix(b"data: "))
    except ValueError:
        return None
    return value if isinstance(value, dict) and "error" not in value and "choices" in value else None
