"""A key of etcd is followed, by a real server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake import etcd_key
from wavepp_worker.intake.etcd_key import EtcdKey

from tests.support.etcd_server import EtcdServer
from tests.support.waiting import until


def test_certificates_that_cannot_be_read_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ETCD_AUTH_CA, .*no certificate can be read"):
        EtcdKey("a", {"ETCD_AUTH_CA": str(tmp_path / "none.pem")})


def test_a_server_that_is_killed_is_followed_again_and_says_nothing_twice(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bytes | None] = []
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        task = asyncio.create_task(EtcdKey("a", {"ETCD_ENDPOINTS": etcd.url}).follow(told.append))
        await until(lambda: told == [None])
        await asyncio.to_thread(etcd.put, "a", "1")
        await until(lambda: told == [None, b"1"])
        for value in ("1 as it was", "2"):
            await asyncio.to_thread(etcd.kill)
            await until(lambda: "is tried again" in caplog.text)
            await asyncio.to_thread(etcd.start)
            if value == "2":
                await asyncio.to_thread(etcd.put, "a", "2")
            await until(lambda: "can be asked for a again" in caplog.text)
            caplog.clear()
        await until(lambda: told == [None, b"1", b"2"])
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    assert told == [None, b"1", b"2"]


def test_another_value_with_the_revision_of_the_one_before_is_told() -> None:
    """As of a server that comes back with a new store, which counts from the beginning."""
    told: list[bytes | None] = []
    key = EtcdKey("a", {})
    for value in ("MQ==", "MQ==", "Mg=="):
        key._tell(told.append, {"mod_revision": "2", "value": value})
    assert told == [b"1", b"2"]


def test_a_value_too_long_for_a_watch_is_read_all_the_same_and_those_after_it(etcd: EtcdServer) -> None:
    told: list[bytes | None] = []
    long = "y" * 1_000_000

    async def scenario() -> None:
        task = asyncio.create_task(EtcdKey("a", {"ETCD_ENDPOINTS": etcd.url}).follow(told.append))
        await until(lambda: told == [None])
        await asyncio.to_thread(etcd.put, "a", long)
        await until(lambda: told == [None, long.encode()])
        await asyncio.to_thread(etcd.put, "a", "1")
        await until(lambda: told[2:] == [b"1"])
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())


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
