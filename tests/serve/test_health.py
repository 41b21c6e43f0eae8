"""What processes say over HTTP is asked for in bounded time and memory, whatever answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from wavepp_worker.serve import health
from wavepp_worker.worker_description import WorkerDescription

SECONDS = 0.3
_HEAD = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n"

Answer = Callable[[socket.socket], None]
Serve = Callable[[Answer], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Call it with what to do with a connection; returns a URL."""
    listeners: list[socket.socket] = []
    over = threading.Event()

    def made(answer: Answer) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def one() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(65536)
                answer(connection)
                over.wait(10)

        threading.Thread(target=one, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield made
    over.set()
    for listener in listeners:
        listener.close()


def _forever(first: bytes, then: bytes, pause: float) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(then)
            time.sleep(pause)

    return answer


def _once(data: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        _forever(b"", b"", 1.0),
        _forever(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n", 0.05),
        _forever(_HEAD % (200, 1000), b" ", 0.05),
        _forever(_HEAD % (500, 1000), b" ", 0.05),
        _forever(b"HTTP/1.1 200 OK\r\n\r\n", b"wavepp_x 1\n" * 10_000, 0.0),
        _once(_HEAD % (500, 1000) + b"abc"),
        _once(b"\x00\xff" * 500),
    ],
    ids=[
        "silent",
        "head by head",
        "byte by byte",
        "an error byte by byte",
        "endless",
        "broken off",
        "garbage",
    ],
)
def test_what_does_not_answer_in_time_does_not_answer(
    serve: Serve, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MOST_BYTES", 1 << 20)
    url = serve(answer)
    began = time.monotonic()
    assert asyncio.run(health.get(url, SECONDS)) == (0, None)
    assert time.monotonic() - began < SECONDS + 2


@pytest.mark.parametrize("body", [b"hello", b"[" * 200_000, b"\xff"])
def test_what_is_no_json_has_a_status_alone(serve: Serve, body: bytes) -> None:
    assert asyncio.run(health.get(serve(_once(_HEAD % (503, len(body)) + body)), 5)) == (503, None)


def test_many_that_hang_take_no_longer_than_one(serve: Serve) -> None:
    async def ask() -> None:
        hanging = [serve(_forever(b"", b"", 1.0)) for _ in range(40)]
        assert (
            await asyncio.gather(*(health.control(url, "why", {}, SECONDS) for url in hanging)) == [None] * 40
        )

    began = time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - began < SECONDS * 4


def test_nobody_is_sent_elsewhere(serve: Serve) -> None:
    moved = b"HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"
    assert asyncio.run(health.get(serve(_once(moved)), 5)) == (302, None)


def test_a_worker_is_known_by_the_endpoint_that_it_serves(serve: Serve) -> None:
    """It has others beside it, and the frontend has one of its own."""
    found = [("a", 1), ("router-discovery", 2), ("worker_kv_query_source_1", 1), ("a", 3), ("b", 4)]
    body = json.dumps(
        {"instances": [{"endpoint": name, "instance_id": each} for name, each in found]}
    ).encode()
    for endpoints, count in (({"a"}, 2), ({"a", "b"}, 3), ({"generate"}, 0)):
        url = serve(_once(_HEAD % (200, len(body)) + body))
        assert asyncio.run(health.known_workers(url, endpoints)) == count


@pytest.mark.parametrize(
    ("status", "body", "described"),
    [
        (200, b'{"instance":"2a","engines":[]}', WorkerDescription(instance="2a", engines=())),
        (404, b'{"error":"Route not found"}', None),
        (500, b'{"error":"it has no time"}', None),
        (200, b'{"status":"error"}', None),
    ],
    ids=["it does", "it cannot yet, or never", "busy", "it is dead"],
)
def test_a_worker_says_what_it_is_or_does_not(
    serve: Serve, status: int, body: bytes, described: WorkerDescription | None
) -> None:
    url = serve(_once(_HEAD % (status, len(body)) + body))
    assert asyncio.run(health.describe(url)) == described
