"""What each replica gets of a value that all are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PREFILL_WORKER, WORKER, Service
from wavepp_worker.serve.replica_values import replica_values


@pytest.mark.parametrize("service", [PREFILL_WORKER, WORKER])
def test_replicas_get_their_own_of_what_they_cannot_share(service: Service) -> None:
    values = {
        "disk_path": "/cache/kv",
        "timeline": "out/trace.json",
        "bootstrap_port": 5000,
        "pp": 2,
        "dtype": None,
    }
    assert [replica_values(service, values, replica, 2) for replica in range(2)] == [
        {
            "disk_path": Path(f"/cache/kv/replica-{replica}"),
            "timeline": Path(f"out/trace-{replica}.json"),
            "bootstrap_port": 5000 + replica,
            "pp": 2,
            "dtype": None,
        }
        for replica in range(2)
    ]
    assert replica_values(service, values, 0, 1) == values


def test_a_value_says_itself_where_the_number_goes() -> None:
    values = {
        "disk_path": "/disk{replica}/kv",
        "timeline": Path("trace.json"),
        "bootstrap_port": "500{replica}",
        "host": "127.0.0.{replica}",
        "list": ["{replica}", 1],
        "json": {"a": "{replica}{replica}"},
    }
    assert replica_values(PREFILL_WORKER, values, 3, 4) == {
        "disk_path": "/disk3/kv",
        "timeline": Path("trace-3.json"),
        "bootstrap_port": "5003",
        "host": "127.0.0.3",
        "list": ["3", 1],
        "json": {"a": "33"},
    }
    assert replica_values(PREFILL_WORKER, values, 0, 1)["disk_path"] == "/disk0/kv"


def test_any_free_port_is_any_free_port_for_all() -> None:
    assert replica_values(PREFILL_WORKER, {"bootstrap_port": 0}, 1, 2) == {"bootstrap_port": 0}
    with pytest.raises(ConfigError, match=r"^PrefillWorker\.bootstrap_port: 'x' is not a port number"):
        replica_values(PREFILL_WORKER, {"bootstrap_port": "x"}, 1, 2)


@pytest.mark.parametrize("place", ["{rank}", "{replicas}", "{}"])
def test_a_place_for_what_replicas_have_not_is_refused(place: str) -> None:
    values = {"disk_path": f"/cache/{place}/{{replica}}"}
    with pytest.raises(
        ConfigError, match=r"^PrefillWorker\.disk_path: \{\w*\} stands for nothing; .* \{replica\}"
    ):
        replica_values(PREFILL_WORKER, values, 0, 1)
