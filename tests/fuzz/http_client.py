"""Sends a request byte by byte as it says, be it HTTP or not, and reads what comes back within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass

from wavepp_worker.handoff.connection import deadline

from tests.fuzz.http_requests import HttpRequest

_SERVER_ERROR = re.compile(
    rb'"code"\s*:\s*"?(5\d\d)|"(server_error|internal_server_error)"|"finish_reason":"error"'
)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")

OVERLOADED = 529
"""What Dynamo answers when a worker's request plane takes no more for the moment."""


@dataclass(frozen=True)
class HttpAnswer:
    """What came back.

    Attributes:
        status: of the status line, or of an error inside a stream; None if nothing came, or not HTTP.
        late: the connection was still open, and silent or not, when the bound had passed.
    """

    status: int | None
    raw: bytes
    seconds: float
    late: bool

    @property
    def failed(self) -> bool:
        """Whether the server blames itself; that it is overloaded, as many choices at once may make it, is no blame."""
        return self.late or ((self.status or 0) >= 500 and self.status != OVERLOADED)


async def send(host: str, port: int, request: HttpRequest, bound: float) -> HttpAnswer:
    """One request over a connection of its own.

    Args:
        bound: seconds until the whole answer has to be here.
    """
    began = time.monotonic()
    raw = bytearray()
    late = False
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with deadline.timeout(bound):
            await _talk(reader, writer, request, raw)
    except asyncio.TimeoutError:
        late = True
    except OSError:
        pass  # hung up on
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return HttpAnswer(_status(bytes(raw)), bytes(raw), time.monotonic() - began, late)


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: HttpRequest, raw: bytearray
) -> None:
    message = _message(request)
    if request.manner == "leave while sending":
        writer.write(message[: len(message) * 2 // 3])
        await writer.drain()
        return
    writer.write(message)
    with contextlib.suppress(OSError):  # it may answer without reading everything
        await writer.drain()
    if request.manner == "leave while waiting":
        return
    if request.manner == "leave while reading":
        raw += await reader.read(1)
        return
    while piece := await reader.read(1 << 16):
        raw += piece


def _message(request: HttpRequest) -> bytes:
    given = {name.lower() for name, _ in request.headers}
    headers = [("Host", "localhost"), ("Connection", "close"), *request.headers]
    if "content-type" not in given:
        headers.append(("Content-Type", "application/json"))
    if not given & {"content-length", "transfer-encoding"}:
        headers.append(("Content-Length", str(len(request.body))))
    head = f"{request.method} {request.target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers)
    return head.encode() + b"\r\n" + request.body


def _status(raw: bytes) -> int | None:
    found = _STATUS.match(raw)
    if found is None:
        return None
    status = int(found[1])
    inside = _SERVER_ERROR.search(raw) if status == 200 else None
    return int(inside[1] or 500) if inside else status
