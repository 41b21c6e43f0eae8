from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError, QueueError
from wavepp_worker.intake import server_address
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.server_address import authentication, connect, servers
from wavepp_worker.server_reach import without_password

from tests.support.certificates import loopback_certificates
from tests.support.nats_servers import NatsServer
from tests.support.waiting import wait_until


def test_who_is_asked_first_wins() -> None:
    assert servers(None, {}) == ["nats://127.0.0.1:4222"]
    assert servers(None, {"NATS_SERVER": "nats://a:1, tls://b:2"}) == ["nats://a:1", "tls://b:2"]
    assert servers("nats://c:3", {"NATS_SERVER": "nats://a:1"}) == ["nats://c:3"]
    with pytest.raises(ConfigError, match="nats_server: 'http://a' should be like"):
        servers("http://a", {})


@pytest.mark.parametrize("place", ["host:99999", "host:0", "host:port", "host:-1", "[::1", ":4222", "/"])
def test_where_nobody_can_listen_is_said_before_anything_is_tried(place: str) -> None:
    with pytest.raises(ConfigError, match=r"nats_server: .* should be like .* port from 1 to 65535"):
        servers(f"nats://{place}", {})
    assert servers("nats://[::1]:4222,nats://u:p@host", {}) == ["nats://[::1]:4222", "nats://u:p@host"]


def test_proof_is_as_dynamo_reads_it() -> None:
    assert authentication({}) == {}
    given = {"NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p", "NATS_AUTH_TOKEN": ""}
    assert authentication(given) == {"user": "u", "password": "p"}


def test_a_file_of_credentials_that_cannot_be_read_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_address, "find_spec", lambda _: True)
    file = tmp_path / "user.creds"
    given = {"NATS_AUTH_CREDENTIALS_FILE": str(file)}
    with pytest.raises(ConfigError, match=r"NATS_AUTH_CREDENTIALS_FILE: '.*user\.creds' cannot be read"):
        authentication(given)
    file.touch()
    assert authentication(given) == {"user_credentials": str(file)}


def test_passwords_are_not_shown() -> None:
    assert without_password("nats://user:secret@host:4222") == "nats://host:4222"


def test_a_server_asks_who_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsServer(tmp_path, 'authorization { user: "u", password: "p" }')
    server.start()
    try:
        with pytest.raises(QueueError, match=r"no NATS server can be used at .*Authorization"):
            asyncio.run(connect(server.url, os.environ, "test", 1.0))
        monkeypatch.setenv("NATS_AUTH_USERNAME", "u")
        monkeypatch.setenv("NATS_AUTH_PASSWORD", "p")
        with PrefillQueue("m", server=server.url) as queue:
            assert queue.depth() == 0
    finally:
        server.close()


@pytest.mark.parametrize("meanwhile", ['authorization { user: "u", password: "q" }', "max_connections: 1"])
def test_who_is_refused_after_a_while_comes_back_once_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, meanwhile: str
) -> None:
    """Another password, or fewer connections, that an operator gives a server that runs, and takes back."""
    own = 'authorization { user: "u", password: "p" }'
    server = NatsServer(tmp_path, own)
    server.start()
    monkeypatch.setenv("NATS_AUTH_USERNAME", "u")
    monkeypatch.setenv("NATS_AUTH_PASSWORD", "p")
    try:
        with ExitStack() as stack:
            queues = [stack.enter_context(PrefillQueue("m", server=server.url)) for _ in range(2)]
            server.reload(meanwhile if "user" in meanwhile else f"{own}\n{meanwhile}")
            wait_until(lambda: "and is tried again" in caplog.text)
            time.sleep(0.5)
            server.reload(own)
            for queue in queues:
                wait_until(lambda queue=queue: depth_of(queue) == 0)
    finally:
        server.close()


def depth_of(queue: PrefillQueue) -> int | None:
    """None while the server is not reached; what was asked just before it is lost is not answered."""
    try:
        return queue.depth()
    except QueueError:
        return None


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


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_an_encrypted_server_is_reached_if_its_authority_is_trusted(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate, key = loopback_certificates(tmp_path)
    server = NatsServer(tmp_path, f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
    url = server.url.replace("nats://", f"{scheme}://")
    server.start()
    try:
        with pytest.raises(
            QueueError, match=rf"no NATS server can be used at {scheme}://.*CERTIFICATE_VERIFY_FAILED"
        ):
            asyncio.run(connect(url, os.environ, "test", 1.0))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        with PrefillQueue("m", server=url) as queue:
            assert queue.depth() == 0
    finally:
        server.close()


def test_an_nkey_is_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nkeys = pytest.importorskip("nkeys", reason="the optional package nkeys is not installed")
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(seed).public_key.decode()
    server = NatsServer(tmp_path, f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    server.start()
    try:
        with pytest.raises(QueueError, match=r"no NATS server can be used at .*Authorization"):
            asyncio.run(connect(server.url, os.environ, "test", 1.0))
        monkeypatch.setenv("NATS_AUTH_NKEY", seed.decode())
        with PrefillQueue("m", server=server.url) as queue:
            assert queue.depth() == 0
    finally:
        server.close()


def test_a_server_that_hangs_is_said_not_to_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(
            QueueError, match=rf"no NATS server can be used at {url}: it does not answer; start"
        ):
            asyncio.run(connect(url, {}, "test", 3.0))


def test_who_loses_a_cancellation_while_it_connects_is_cancelled_again() -> None:
    """Python's own waits do, before 3.12, and one for a server of whom nobody knows the password went on for ever."""
    lost = []

    async def connecting() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost.append(1)
                if len(lost) == 3:
                    raise

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(server_address._within(None, connecting()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.cancelled()

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(server_address._within(0.01, connecting()), 10))
    assert len(lost) == 3
    lost.clear()
    asyncio.run(cancelled())
    assert len(lost) == 3
