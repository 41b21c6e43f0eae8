from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest
from wavepp_worker.dynamo import etcd_use
from wavepp_worker.dynamo.etcd_use import runtime_ended_line, wait_for_etcd
from wavepp_worker.errors import PlaneUnreached


def planes(discovery: str = "etcd") -> SimpleNamespace:
    return SimpleNamespace(discovery_backend=discovery, request_plane="tcp", event_plane="zmq")


def test_a_process_waits_for_etcd_and_hears_what_it_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(etcd_use, "AGAIN_SECONDS", 0.01)

    async def scenario() -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            monkeypatch.setenv("ETCD_ENDPOINTS", f"127.0.0.1:9, 127.0.0.1:{server.getsockname()[1]}")
            waiting = asyncio.create_task(wait_for_etcd(planes()))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            server.listen()
            await asyncio.wait_for(waiting, 20)

    asyncio.run(scenario())
    assert capsys.readouterr().err.count("--discovery-backend=etcd needs etcd, and none is reached") == 1


def test_the_wait_has_an_end_and_other_discoveries_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(etcd_use, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(etcd_use, "AGAIN_SECONDS", 0.01)
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://127.0.0.1:9")
    with pytest.raises(PlaneUnreached, match=r"by ETCD_ENDPOINTS \(http://127.0.0.1:9: .*refused"):
        asyncio.run(wait_for_etcd(planes()))
    capsys.readouterr()
    asyncio.run(wait_for_etcd(planes("file")))
    assert capsys.readouterr().err == ""


def test_etcd_is_not_blamed_for_the_end_of_a_process_that_does_not_use_it() -> None:
    assert "could not renew this process's lease in etcd" in runtime_ended_line(planes())
    other = runtime_ended_line(planes("file"))
    assert "etcd" not in other.lower()
    assert other.startswith("FATAL: Dynamo ended its runtime")
    assert "discovery (file)" in other
