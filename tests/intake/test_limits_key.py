"""The limits of remote prefills as a key of etcd says them, by a real server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake import etcd_key
from wavepp_worker.intake.etcd_key import EtcdKey
from wavepp_worker.intake.limits_key import LimitsKey, limits_key
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_limits import PrefillLimits
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill

from tests.support import etcd_server
from tests.support.etcd_server import EtcdServer
from tests.support.nats_servers import NatsServer

STARTED = PrefillLimits(max_local_prefill_length=1000, max_prefill_queue_size=2)
KEY = "wavepp/tests/a model/remote_prefill"


def limits(local: int, queued: int) -> PrefillLimits:
    return PrefillLimits(max_local_prefill_length=local, max_prefill_queue_size=queued)


def test_a_value_changes_what_it_names_and_no_value_nothing() -> None:
    key = LimitsKey(STARTED)
    assert key.limits(b'{"max_prefill_queue_size": 7}') == limits(1000, 7)
    assert key.limits(b'{"max_local_prefill_length": 0}') == limits(0, 2)
    assert key.limits(None) == STARTED
    assert limits_key(QueueName("tests", "a model")) == KEY


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"4000", "no JSON object like"),
        (b"{", "no JSON object like"),
        (b'{"a": "\xff"}', "no JSON object like"),
        (b'{"max_local": 4}', "give max_local_prefill_length or max_prefill_queue_size"),
        (b'{"max_prefill_queue_size": -1}', "whole numbers of at least 0"),
    ],
)
def test_what_is_no_limit_is_refused_with_a_sentence(
    value: bytes, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert LimitsKey(STARTED).limits(value) is None
    assert "is refused, and the limits stay as they are: " in caplog.text
    assert sentence in caplog.text


def test_certificates_that_cannot_be_read_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ETCD_AUTH_CA, .*no certificate can be read"):
        EtcdKey("a", {"ETCD_AUTH_CA": str(tmp_path / "none.pem")})


@pytest.fixture
def etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdServer]:
    if etcd_server.BINARY is None:
        pytest.skip("there is no etcd on this machine; install one (apt install etcd-server)")
    server = EtcdServer(tmp_path)
    server.start()
    monkeypatch.setattr(etcd_key, "AGAIN_SECONDS", 0.05)
    yield server
    server.close()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.close()


async def until(what: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + 20
    while not what():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.02)


async def in_thread(work: Callable[..., None], *words: str) -> None:
    await asyncio.to_thread(work, *words)


def test_a_decode_worker_follows_the_key(
    etcd: EtcdServer, nats: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The second of two that is there is found.
    monkeypatch.setenv("ETCD_ENDPOINTS", f"http://127.0.0.1:1,{etcd.url}")
    config = RemotePrefillConfig(remote_prefill="nats", nats_server=nats.url)
    etcd.put(KEY, json.dumps({"max_local_prefill_length": 5}))

    async def scenario() -> None:
        remote = RemotePrefill(config, QueueName("tests", "a model"), etcd=True)
        assert remote.limits == STARTED
        await remote.open()
        try:
            await until(lambda: remote.limits == limits(5, 2))
            await in_thread(etcd.put, KEY, json.dumps({"max_prefill_queue_size": 9}))
            await until(lambda: remote.limits == limits(1000, 9))
            await in_thread(etcd.put, KEY, json.dumps({"max_prefill_queue_size": "many"}))
            await until(lambda: "is refused" in caplog.text)
            assert remote.limits == limits(1000, 9)
            # Another key is none of ours.
            await in_thread(etcd.put, f"{KEY}/x", json.dumps({"max_prefill_queue_size": 1}))
            await in_thread(etcd.delete, KEY)
            await until(lambda: remote.limits == STARTED)
        finally:
            await remote.close()

    asyncio.run(scenario())


def test_a_server_that_is_killed_is_followed_again_and_says_nothing_twice(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bytes | None] = []
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        task = asyncio.create_task(EtcdKey("a", {"ETCD_ENDPOINTS": etcd.url}).follow(told.append))
        await until(lambda: told == [None])
        await in_thread(etcd.put, "a", "1")
        await until(lambda: told == [None, b"1"])
        for value in ("1 as it was", "2"):
            await in_thread(etcd.kill)
            await until(lambda: "is tried again" in caplog.text)
            await in_thread(etcd.start)
            if value == "2":
                await in_thread(etcd.put, "a", "2")
            await until(lambda: "can be asked for a again" in caplog.text)
            caplog.clear()
        await until(lambda: told == [None, b"1", b"2"])
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    assert told == [None, b"1", b"2"]


def test_a_watch_that_is_silent_for_long_is_begun_anew(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_key, "SILENCE_SECONDS", 0.1)
    asked: list[str] = []
    ask = etcd_key._ask

    async def count(session: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(path)
        return await ask(session, path, body)

    monkeypatch.setattr(etcd_key, "_ask", count)

    async def scenario() -> None:
        task = asyncio.create_task(EtcdKey("a", {"ETCD_ENDPOINTS": etcd.url}).follow(lambda _: None))
        await until(lambda: asked.count("/v3/kv/range") > 2)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())


def test_who_one_is_is_said(etcd: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    etcd.put("a", "1")
    etcd.post("/v3/auth/user/add", {"name": "root", "password": "p"})
    etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    etcd.post("/v3/auth/enable", {})
    told: list[bytes | None] = []

    async def scenario(**who: str) -> None:
        task = asyncio.create_task(EtcdKey("a", {"ETCD_ENDPOINTS": etcd.url, **who}).follow(told.append))
        await until(lambda: bool(told) or "is tried again" in caplog.text)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    assert told == []
    assert "user name is empty" in caplog.text
    caplog.clear()
    asyncio.run(scenario(ETCD_AUTH_USERNAME="root", ETCD_AUTH_PASSWORD="p"))
    assert told == [b"1"]
