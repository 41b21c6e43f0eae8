from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
from wavepp_worker.dynamo.nats_use import hide_unused_nats
from wavepp_worker.errors import PlaneUnreached


def planes(**other: str | None) -> SimpleNamespace:
    return SimpleNamespace(
        **{"discovery_backend": "file", "request_plane": "tcp", "event_plane": "zmq", **other}
    )


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", "nats://127.0.0.1:9")
    monkeypatch.setenv("NATS_AUTH_TOKEN", "t")
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://a:1")


@pytest.mark.parametrize("other", [{}, {"event_plane": None}, {"discovery_backend": "etcd"}])
def test_dynamo_does_not_find_a_server_that_it_does_not_use(other: dict[str, str | None]) -> None:
    hide_unused_nats(planes(**other))
    assert not [name for name in os.environ if name.startswith("NATS_")]
    assert os.environ["ETCD_ENDPOINTS"] == "http://a:1"


def test_what_dynamo_may_use_stays() -> None:
    hide_unused_nats(planes(discovery_backend="etcd", event_plane=None))
    assert os.environ["NATS_AUTH_TOKEN"] == "t"


@pytest.mark.parametrize("plane", ["request_plane", "event_plane"])
def test_a_plane_that_is_nats_needs_its_server(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PlaneUnreached, match=r"--(request|event)-plane=nats needs .* by NATS_SERVER \(nats://"
    ):
        hide_unused_nats(planes(**{plane: "nats"}))
    with socket.create_server(("127.0.0.1", 0)) as there:
        monkeypatch.setenv(
            "NATS_SERVER", f"nats://a:b@127.0.0.1:{there.getsockname()[1]}, nats://127.0.0.1:9"
        )
        hide_unused_nats(planes(**{plane: "nats"}))
    assert "NATS_SERVER" in os.environ
