"""A real etcd server, that can be killed and started again over the same store."""

from __future__ import annotations

import base64
import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import ServerProcess

BINARY = shutil.which("etcd")
NEEDED = "WAVEPP_TESTS_NEED_ETCD"
"""A variable with which no test is left out for want of it."""


def require_etcd() -> None:
    """Leave the test out where there is no etcd, or have it fail if the environment says so."""
    if BINARY is None:
        leave = pytest.fail if os.environ.get(NEEDED) else pytest.skip
        leave("there is no etcd on this machine; install one (apt install etcd-server)")


class EtcdServer(ServerProcess):
    """As of ``ServerProcess``."""

    name = "etcd"
    start_seconds = 20.0

    def __init__(self, store: Path, *flags: str, scheme: str = "http") -> None:
        """``flags``: further ones of ``etcd``."""
        super().__init__(store / "etcd.log")
        port, peer_port = self.held.choose(2)
        self.url = f"{scheme}://127.0.0.1:{port}"
        peer = f"http://127.0.0.1:{peer_port}"
        assert BINARY is not None
        self.command = [
            BINARY,
            f"--data-dir={store / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *flags,
        ]

    def ask(self) -> None:
        self.post("/v3/maintenance/status", {})

    def put(self, key: str, value: str, lease: int = 0) -> None:
        """``lease``: with which the key ends; 0 for none."""
        body = {"key": _encoded(key), "value": _encoded(value), "lease": str(lease)}
        self.post("/v3/kv/put", body)

    def delete(self, key: str) -> None:
        self.post("/v3/kv/deleterange", {"key": _encoded(key)})

    def keys(self, prefix: str) -> list[str]:
        """All that begin with it."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {"key": _encoded(prefix), "range_end": _encoded(end), "keys_only": True}
        found = self.post("/v3/kv/range", body).get("kvs", ())
        return [base64.b64decode(each["key"]).decode() for each in found]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
