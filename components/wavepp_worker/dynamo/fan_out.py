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
from wavepp_worker.dynamo.request_headers import CHOICE_HEADER, HOP_BY_HOP, ID_HEADER, passed_on
from wavepp_worker.dynamo.upstream import Unanswered

_PIECES_AHEAD = 64
"""Of all choices together that are there and not sent: a client that reads slowly slows them down."""
_NOT_PASSED_ON = HOP_BY_HOP | {ID_HEADER, CHOICE_HEADER, "accept-encoding"}
"""Among headers: an id is one request's, and the mark is made anew."""


class FanOut:
    """Asks a server for choices. To be opened and closed in a running loop."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    async def open(self, url: str) -> None:
        """``url``: of the server, without a path."""
        self._url = url
        # It asks itself, whose certificate may be of any name.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0, ssl=False)
        )

    async def close(self) -> None:
        """Ask nothing more; idempotent."""
        if self._session is not None:
            await self._session.close()

    def asked(self, request: web.BaseRequest) -> bool:
        """Whether a request is one of those that this has made."""
        mark = request.headers.get(CHOICE_HEADER, "").encode(errors="surrogateescape")
        return secrets.compare_digest(mark, self._mark.encode())

    async def answer(self, request: web.BaseRequest, body: dict[str, Any], count: int) -> web.StreamResponse:
        """The answer with ``count`` choices for each prompt; the first refusal or error, if there is one.

        A stream begins with the first choice that does: others may have to wait until this one has ended.

        Raises:
            Unanswered: a choice could not be asked for, or its answer broke off.
        """
        asked: list[asyncio.Task[aiohttp.ClientResponse]] = []
        try:
            for number in range(count):
                asked.append(asyncio.create_task(self._ask(request, one_choice(body, number))))
                # Others come in between: a long body takes its time for each choice.
                await asyncio.sleep(0)
            for each in asyncio.as_completed(asked):
                answer = await each
                if answer.status != 200:
                    kind = answer.headers.get("Content-Type", "application/json")
                    return web.Response(
                        status=answer.status, body=await answer.read(), headers={"Content-Type": kind}
                    )
                if answer.content_type == "text/event-stream":
                    return await _stream(request, asked)
            merged = Choices(count).merged([await _json(each.result()) for each in asked])
            return web.json_response(merged)
        finally:
            for each in asked:
                each.cancel()
                if each.done() and not each.cancelled() and each.exception() is None:
                    each.result().close()

    async def _ask(self, request: web.BaseRequest, data: bytes) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = [*passed_on(request.headers, _NOT_PASSED_ON), (CHOICE_HEADER, self._mark)]
        try:
            return await self._session.post(self._url + request.path, data=data, headers=headers)
        except aiohttp.ClientError as error:
            raise Unanswered(f"a choice could not be asked for ({error}); ask again") from error


async def _json(answer: aiohttp.ClientResponse) -> Any:
    try:
        return await answer.json()
    except (aiohttp.ClientError, ValueError) as error:
        raise Unanswered(f"the answer of a choice broke off ({error}); ask again") from error


async def _stream(
    request: web.BaseRequest, asked: list[asyncio.Task[aiohttp.ClientResponse]]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    choices = Choices(len(asked))
    pieces: asyncio.Queue[tuple[int, bytes | None]] = asyncio.Queue(_PIECES_AHEAD)
    readers = [asyncio.ensure_future(_read(number, each, pieces)) for number, each in enumerate(asked)]
    usage: dict[str, Any] | None = None
    left = len(asked)
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
    number: int, asked: asyncio.Task[aiohttp.ClientResponse], pieces: asyncio.Queue[tuple[int, bytes | None]]
) -> None:
    try:
        answer = await asked
        if answer.status != 200:
            await pieces.put((number, _error_event(await answer.text(), answer.status)))
        else:
            async for event in _events(answer):
                if event != b"data: [DONE]":
                    await pieces.put((number, event))
    except (aiohttp.ClientError, Unanswered) as error:
        await pieces.put((number, _error_event(str(error), 503)))
    await pieces.put((number, None))


def _error_event(said: str, status: int) -> bytes:
    """A refusal or error as an event; ``said``: a sentence, or JSON that has one as ``message``."""
    try:
        value = json.loads(said)
    except ValueError:
        value = None
    message = value.get("message", said) if isinstance(value, dict) else said
    kind = "invalid_request_error" if status < 500 else "service_unavailable"
    return b"data: " + json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()


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
