"""Valid messages of every protocol that a run's ports speak, to be damaged."""

from __future__ import annotations

import json
import struct
import typing
from typing import Any, get_args, get_origin

import msgspec
from wavepp_worker.handoff.claim_messages import FromClaimant, ToClaimant
from wavepp_worker.handoff.pull_messages import FromPuller, ToPuller

_LENGTH = struct.Struct("<I")


def example(kind: Any) -> Any:
    """A value of a type, whatever its fields are called; structs, tuples and the plain types they hold."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(example(part) for part in inner if part is not Ellipsis)
    if origin is typing.Literal:
        return inner[0]
    if inner:
        return example(inner[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: example(field.type) for field in msgspec.structs.fields(kind)})
    plain: dict[Any, Any] = {int: 7, float: 0.05, str: "a", bytes: b"a" * 16, bool: True, type(None): None}
    return plain[kind]


def framed(union: Any) -> list[bytes]:
    """One frame, length in front, of each message of a union."""
    bodies = [msgspec.msgpack.encode(example(kind)) for kind in get_args(union)]
    return [_LENGTH.pack(len(body)) + body for body in bodies]


def _http(method: str, target: str, body: object = None) -> bytes:
    text = "" if body is None else json.dumps(body)
    head = f"{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


CLAIMS = framed(FromClaimant)
PULLS = framed(FromPuller)
ANSWERS = framed(ToClaimant) + framed(ToPuller)
"""What only the other side says."""

HTTP_FRONTEND = [
    _http("POST", "/v1/completions", {"model": "model", "prompt": [1, 2], "max_tokens": 1}),
    _http("POST", "/v1/chat/completions", {"model": "x", "messages": []}),
    _http("GET", "/v1/models"),
    _http("GET", "/health"),
]
HTTP_SYSTEM = [
    _http("GET", "/health"),
    _http("GET", "/live"),
    _http("GET", "/metrics"),
    _http("POST", "/engine/control/timings", {"last": 1}),
    _http("POST", "/engine/control/nothing", {}),
]

_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x01NULL" + b"\0" * 48
_READY = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x04PAIR\x08Identity\0\0\0\0"
ZMTP = [_GREETING, _GREETING + _READY]
"""How a ZeroMQ peer begins; a socket pattern that does not fit ends the connection before any message."""

ANYTHING = [
    b"\0" * 24,
    *HTTP_SYSTEM[:1],
    *CLAIMS,
    struct.pack(">QQ", 8, 8) + b"{}{}{}{}",
    b"\x16\x03\x01\x02\0",
]
