"""Requests as a careless or hostile client sends them: a good one, changed in a few places. Strategies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from tests.fuzz.odd_values import ODD, TEXTS, Verbatim
from tests.fuzz.openai_fields import CHAT, COMPLETION, RESPONSES

Manner = Literal["whole", "leave while sending", "leave while waiting", "leave while reading"]

PATHS: dict[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
}
OTHER_TARGETS = (
    "/v1/models",
    "/v1/models/x/ready",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/pooling",
    "/v1/realtime",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/videos",
    "/busy_threshold",
    "/openapi.json",
    "/health",
    "/live",
    "/metrics",
    "/",
    "/v1/complet%69ons",
    "/x/../v1/completions",
    "//v1/completions",
    "/v1/completions/",
    "/v1/completions?a=%00&b=%ff",
    "/%2e%2e/%00",
    "*",
    "http://127.0.0.1:1/v1/completions",
    "@127.0.0.1:1/",
)
METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "POST", "X")
HEADERS: st.SearchStrategy[tuple[str, str]] = st.sampled_from(
    [
        ("Content-Type", "text/plain"),
        ("Content-Type", ""),
        ("Content-Type", "application/json; charset=utf-16"),
        ("Content-Type", "multipart/form-data; boundary=a"),
        ("Content-Encoding", "gzip"),
        ("Content-Encoding", "deflate"),
        ("Accept-Encoding", "gzip, br, zstd"),
        ("Accept", "text/event-stream"),
        ("Authorization", "Bearer " + "a" * 5000),
        ("Expect", "100-continue"),
        ("Upgrade", "websocket"),
        ("X-Request-Id", "not a uuid"),
        ("x-request-id", "é\x01"),
        ("traceparent", "00-0-0-0"),
        ("x-dynamo-request-id", "a" * 300),
        ("x-worker-instance-id", "5"),
        ("x-dynamo-worker-instance-id", "-1"),
        ("x-prefill-instance-id", "5"),
        ("x-dp-rank", "7"),
        ("x-prefill-dp-rank", "x"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Content-Length", "3"),
        ("Transfer-Encoding", "gzip"),
    ]
)


@dataclass(frozen=True)
class HttpRequest:
    """One request, and how its client behaves.

    Attributes:
        target: what stands in the request line, in whatever form.
        headers: beside those that any client sends.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    manner: Manner

    def __str__(self) -> str:
        shown = self.body if len(self.body) < 600 else self.body[:300] + b" ... " + self.body[-200:]
        return f"{self.method} {self.target} {dict(self.headers)} [{self.manner}] {len(self.body)} bytes: {shown!r}"


def encode(pairs: Sequence[tuple[str, Any]]) -> bytes:
    """A JSON object with these keys in this order, doubles included."""
    written = (f"{json.dumps(key)}:{_value(value)}" for key, value in pairs)
    return ("{" + ",".join(written) + "}").encode()


def _value(value: Any) -> str:
    return value.text if isinstance(value, Verbatim) else json.dumps(value)


def good_body(path: str, model: str) -> dict[str, Any]:
    """What a plain client asks."""
    match path:
        case "/v1/completions":
            return {"model": model, "prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
        case "/v1/chat/completions":
            messages = [{"role": "user", "content": "hi"}]
            return {"model": model, "messages": messages, "max_tokens": 3, "temperature": 0}
        case _:
            return {"model": model, "input": "hi", "max_output_tokens": 3}


@st.composite
def _pairs(draw: st.DrawFn, path: str, model: str) -> list[tuple[str, Any]]:
    fields = PATHS[path]
    pairs = list(good_body(path, model).items())
    # One wrong type refuses the whole request at once, and hides what the other fields would do.
    odd = draw(st.integers(0, 2)) == 0
    for _ in range(draw(st.integers(0, 4))):
        field = draw(st.sampled_from(sorted(fields)))
        value = draw(st.one_of(fields[field], ODD) if odd else fields[field])
        pairs = [pair for pair in pairs if pair[0] != field]
        pairs.append((field, value))
    match draw(
        st.sampled_from(["no", "no", "no", "no", "no", "no", "double", "unknown", "lacking", "model"])
    ):
        case "double" if odd:
            pairs.append((draw(st.sampled_from(pairs))[0], draw(ODD)))
        case "unknown" if odd:
            pairs.append((draw(TEXTS), draw(ODD)))
        case "lacking":
            pairs.remove(draw(st.sampled_from(pairs)))
        case "model" if odd:
            pairs[0] = ("model", draw(ODD))
    return pairs


@st.composite
def _broken(draw: st.DrawFn, body: bytes) -> bytes:
    """The same bytes, damaged or wrapped."""
    at = draw(st.integers(0, max(0, len(body) - 1)))
    return draw(
        st.sampled_from(
            [
                b"",
                b"null",
                b"[]",
                b"\0" * 1000,
                body[:at],
                body[:at] + b"\n" + body[at:],
                body[:at] + b"\xff" + body[at + 1 :],
                body + body,
                b"\xef\xbb\xbf" + body,
                body.decode().encode("utf-16"),
                b"[" + body + b"]",
                b" " * 3_000_000 + body,
                b"[" * 200_000,
            ]
        )
    )


@st.composite
def http_requests(draw: st.DrawFn, model: str) -> HttpRequest:
    """Mostly posts to the completion paths, whose bodies differ from a good one in a few fields."""
    path = draw(st.sampled_from(["/v1/completions"] * 4 + ["/v1/chat/completions"] * 4 + ["/v1/responses"]))
    body = encode(draw(_pairs(path, model)))
    method, target = "POST", path
    what = draw(st.integers(0, 19))
    if what == 0:
        body = draw(_broken(body))
    elif what == 1:
        method, target = draw(st.sampled_from(METHODS)), draw(st.sampled_from(OTHER_TARGETS))
    headers = draw(st.lists(HEADERS, max_size=2)) if what in (2, 3) else []
    manner: Manner = "whole"
    if what in (4, 5):
        manner = draw(st.sampled_from(["leave while sending", "leave while waiting", "leave while reading"]))
    return HttpRequest(method, target, tuple(headers), body, manner)
