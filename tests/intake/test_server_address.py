from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError, QueueError
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.server_address import authentication, connect, servers, without_password

from tests.support.nats_servers import NatsServer


def test_who_is_asked_first_wins() -> None:
    assert servers(None, {}) == ["nats://127.0.0.1:4222"]
    assert servers(None, {"NATS_SERVER": "nats://a:1, tls://b:2"}) == ["nats://a:1", "tls://b:2"]
    assert servers("nats://c:3", {"NATS_SERVER": "nats://a:1"}) == ["nats://c:3"]
    with pytest.raises(ConfigError, match="nats_server: 'http://a' should be like"):
        servers("http://a", {})


def test_proof_is_as_dynamo_reads_it() -> None:
    assert authentication({}) == {}
    given = {"NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p", "NATS_AUTH_TOKEN": ""}
    assert authentication(given) == {"user": "u", "password": "p"}


def test_passwords_are_not_shown() -> None:
    assert without_password("nats://user:secret@host:4222") == "nats://host:4222"


def test_a_server_asks_who_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsServer(tmp_path, 'authorization { user: "u", password: "p" }')
    server.start()
    try:
        with pytest.raises(QueueError, match=r"NATS_SERVER: no NATS server can be used at .*Authorization"):
            asyncio.run(connect(server.url, "test", 1.0))
        monkeypatch.setenv("NATS_AUTH_USERNAME", "u")
        monkeypatch.setenv("NATS_AUTH_PASSWORD", "p")
        with PrefillQueue("m", server=server.url) as queue:
            assert queue.depth() == 0
    finally:
        server.close()


def test_a_server_without_jetstream_is_named(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    text = server._file.read_text()
    server._file.write_text("\n".join(line for line in text.splitlines() if "jetstream" not in line))
    server.start()
    try:
        queue = PrefillQueue(QueueName("a", "b").model, server=server.url)
        with pytest.raises(ConfigError, match="no JetStream; start it with nats-server -js"):
            queue.open()
    finally:
        server.close()
