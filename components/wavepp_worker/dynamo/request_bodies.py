"""Reads the bodies of HTTP requests, which together never take more than so much memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import HttpVersion11, web

from wavepp_worker.errors import InvalidRequest

MOST_BODY_BYTES = 8 << 20
"""As much as a million token ids; decoded, a hostile body takes about 25 times as much for a moment."""
BODIES_BYTES = 1 << 30
"""All large bodies together, from their first byte until their request is answered: every connection may send one."""
LARGE_BODY_BYTES = 64 << 10
"""Bodies from this size on are large."""
PIECES_AT_ONCE = 64
"""Chunks of a body that are read before others may: a million of one byte take seconds."""
BODY_SECONDS = 60.0
"""How long a client may take to send its body."""


class BodyRefused(Exception):
    """A body that is not read: the status and sentence of the answer."""

    def __init__(self, status: int, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind


@dataclass(eq=False)
class _Body:
    """A large body.

    Attributes:
        size: bytes that came so far.
        reading: takes what comes of it; done once it is there.
        gives_way: another takes its room.
    """

    size: int
    reading: asyncio.Task[bytes]
    gives_way: bool = False


class RequestBodies:
    """The bodies of all requests of a server. Used on its event loop alone.

    Small ones always find room: there are no more of them than connections. For a large one, those that are still
    arriving make room, the longest under way first; if there are none, it is refused.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        """``most_bytes``: of large bodies together; ``BODIES_BYTES`` by default."""
        self._most = BODIES_BYTES if most_bytes is None else most_bytes
        self._held = 0
        self._large: dict[asyncio.Task[bytes], _Body] = {}

    @asynccontextmanager
    async def body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The body as it was sent, which takes room until the context is left.

        Raises:
            InvalidRequest: it cannot be read.
            BodyRefused: it is too long, takes too long, or there is no room for it; or its client waits for what
                does not come.
        """
        if "Content-Encoding" in request.headers:
            raise InvalidRequest("compressed bodies are not taken; send it without Content-Encoding")
        if (request.content_length or 0) > MOST_BODY_BYTES:
            raise _too_long()
        await _ask_for(request)
        reading = asyncio.create_task(self._read(request))
        try:
            yield await _within_time(reading)
        finally:
            body = self._large.pop(reading, None)
            if body is not None and not body.gives_way:
                self._held -= body.size

    async def _read(self, request: web.BaseRequest) -> bytes:
        reading = asyncio.current_task()
        assert reading is not None
        received = bytearray()
        try:
            async for piece in _pieces(request.content):
                received += piece
                if len(received) > MOST_BODY_BYTES:
                    raise _too_long()
                if len(received) >= LARGE_BODY_BYTES:
                    self._take_room(reading, len(received))
        except web.RequestPayloadError as error:
            raise InvalidRequest(f"the body cannot be read: {error}") from error
        except asyncio.CancelledError:
            body = self._large.get(reading)
            if body is not None and body.gives_way:
                raise _no_room() from None
            raise
        else:
            return bytes(received)
        finally:
            # An error refers to this frame, and this frame to the task that keeps the error: until they are collected.
            received.clear()

    def _take_room(self, reading: asyncio.Task[bytes], size: int) -> None:
        body = self._large.setdefault(reading, _Body(0, reading))
        missing = self._held + size - body.size - self._most
        for other in [*self._large.values()]:
            if missing <= 0:
                break
            if other is body or other.gives_way or other.reading.done():
                continue
            other.gives_way = True
            other.reading.cancel()
            self._held -= other.size
            missing -= other.size
        if missing > 0:
            raise _no_room()
        self._held += size - body.size
        body.size = size


async def _pieces(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """What comes, chunk by chunk: all that is there at once may be thousands of chunks of one byte."""
    taken = 0
    while not content.at_eof():
        piece, _ = await content.readchunk()
        yield piece
        taken += 1
        if not taken % PIECES_AT_ONCE:
            await asyncio.sleep(0)


async def _within_time(reading: asyncio.Task[bytes]) -> bytes:
    try:
        return await asyncio.wait_for(reading, BODY_SECONDS)
    except asyncio.TimeoutError:
        sentence = f"the body did not arrive within {BODY_SECONDS:.0f} s; send it at once"
        raise BodyRefused(408, "Request Timeout", sentence) from None


async def _ask_for(request: web.BaseRequest) -> None:
    """Tell a client that waits for it that its body is read; as curl does with a megabyte and more.

    Raises:
        BodyRefused: it waits for something else.
    """
    expected = [value.lower() for value in request.headers.getall("Expect", ())]
    if not expected or request.version < HttpVersion11:
        return
    if set(expected) != {"100-continue"}:
        sentence = "nothing but 100-continue can be expected; leave the header Expect out"
        raise BodyRefused(417, "Expectation Failed", sentence)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # It is no part of the answer, whose size the writer counts.
    request.writer.output_size = 0


def _too_long() -> BodyRefused:
    sentence = f"the body is longer than {MOST_BODY_BYTES} bytes; send fewer or shorter prompts"
    return BodyRefused(413, "Payload Too Large", sentence)


def _no_room() -> BodyRefused:
    sentence = (
        "large requests take all the memory there is for them; send a shorter one, or try again shortly"
    )
    return BodyRefused(503, "Service Unavailable", sentence)
