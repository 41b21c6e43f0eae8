"""Single questions to a real etcd."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from wavepp_worker import etcd_gateway
from wavepp_worker.etcd_gateway import Answer, ask_etcd, keys_with_prefix

from tests.support.etcd_server import EtcdServer, require_etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


def test_keys_with_a_prefix_and_no_others(etcd: EtcdServer) -> None:
    for key in ("a", "a/", "a/b", "a/ü/c", "a0", "b"):
        etcd.put(key, "x")
    where = {"ETCD_ENDPOINTS": f"http://127.0.0.1:9, {etcd.url}"}
    assert keys_with_prefix(where, "a/") == dict.fromkeys(["a/", "a/b", "a/ü/c"], math.inf)
    assert keys_with_prefix(where, "c") == {}
    etcd.post("/v3/lease/grant", {"ID": "42", "TTL": "600"})
    etcd.put("a/b", "x", 42)
    found = keys_with_prefix(where, "a/") or {}
    assert 590 < found["a/b"] <= 600


def test_what_no_server_answers_is_none(etcd: EtcdServer, tmp_path: Path) -> None:
    assert ask_etcd({"ETCD_ENDPOINTS": etcd.url}, "/v3/no", {}, Answer) is None
    assert keys_with_prefix({"ETCD_ENDPOINTS": "http://127.0.0.1:9"}, "a") is None
    assert (
        keys_with_prefix({"ETCD_ENDPOINTS": etcd.url, "ETCD_AUTH_CA": str(tmp_path / "none.pem")}, "a")
        is None
    )


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"<html>",
        b'{"error":"none"}',
        b'{"header":{},"kvs":null}',
        b'{"header":{},"kvs":[{}]}',
        b'{"header":{},"kvs":[{"key":7}]}',
        b'{"header":{},"kvs":[{"key":"%"}]}',
        b'{"header":' + b"[" * 200_000,
        b'{"header":{},"more":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
    ids=range(9),
)
def test_what_is_no_answer_counts_as_none(body: bytes) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as url:
        assert keys_with_prefix({"ETCD_ENDPOINTS": url}, "a") is None


def test_an_answer_that_comes_drop_by_drop_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_gateway, "ANSWER_SECONDS", 0.5)
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", drops=True) as url:
        begun = time.monotonic()
        assert keys_with_prefix({"ETCD_ENDPOINTS": url}, "a") is None
        assert time.monotonic() - begun < 5


@contextmanager
def answering(data: bytes, *, drops: bool = False) -> Iterator[str]:
    """The URL of a server that answers one question with ``data``, and then with a space every 0.05 s."""
    over = Event()

    def answer() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(data)
            while not over.wait(0.05 if drops else 10):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join(10)
