"""Single questions to a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker.etcd_gateway import ask_etcd, keys_with_prefix

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
    assert keys_with_prefix(where, "a/") == ["a/", "a/b", "a/ü/c"]
    assert keys_with_prefix(where, "c") == []


def test_what_no_server_answers_is_none(etcd: EtcdServer, tmp_path: Path) -> None:
    assert ask_etcd({"ETCD_ENDPOINTS": etcd.url}, "/v3/no", {}) is None
    assert keys_with_prefix({"ETCD_ENDPOINTS": "http://127.0.0.1:9"}, "a") is None
    assert (
        keys_with_prefix({"ETCD_ENDPOINTS": etcd.url, "ETCD_AUTH_CA": str(tmp_path / "none.pem")}, "a")
        is None
    )
