"""A dead worker is taken out of a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker.etcd_leases import end_lease
from wavepp_worker.serve.discovery_entries import forgetter

from tests.support.etcd_server import EtcdServer, require_etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    for lease in (42, 43):
        server.post("/v3/lease/grant", {"ID": str(lease), "TTL": "600"})
        server.put(f"v1/instances/{lease}", "{}", lease)
    yield server
    server.close()


def test_all_that_hangs_on_one_lease_ends_at_the_first_server_that_is_there(etcd: EtcdServer) -> None:
    forget = forgetter("etcd", {"ETCD_ENDPOINTS": f"http://127.0.0.1:9, {etcd.url.removeprefix('http://')}"})
    assert forget is not None
    assert forget("2a") is True
    assert etcd.keys("v1/") == ["v1/instances/43"]
    # It is gone already.
    assert forget("2a") is False


def test_who_one_is_is_said(etcd: EtcdServer) -> None:
    etcd.post("/v3/auth/user/add", {"name": "root", "password": "p"})
    etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    etcd.post("/v3/auth/enable", {})
    where = {"ETCD_ENDPOINTS": etcd.url}
    assert not end_lease(where, "2a")
    assert not end_lease({**where, "ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "q"}, "2a")
    assert end_lease({**where, "ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "p"}, "2a")


def test_nothing_is_ended_where_nobody_answers_or_certificates_cannot_be_read(tmp_path: Path) -> None:
    assert not end_lease({"ETCD_ENDPOINTS": "http://127.0.0.1:9"}, "2a")
    assert not end_lease({"ETCD_AUTH_CA": str(tmp_path / "none.pem")}, "2a")
    assert forgetter("kubernetes", {}) is None
