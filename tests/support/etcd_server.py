"""A real etcd server, that can be killed and started again over the same store."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from wavepp_worker.serve.ports import HeldPorts

BINARY = shutil.which("etcd")


class EtcdServer:
    """On loopback, at a port of its own for as long as this is there."""

    def __init__(self, store: Path, *flags: str, scheme: str = "http") -> None:
        """``flags``: further ones of ``etcd``."""
        self._held = HeldPorts()
        port, peer_port = self._held.choose(2)
        self.url = f"{scheme}://127.0.0.1:{port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._log = store / "etcd.log"
        assert BINARY is not None
        self._command = [
            BINARY,
            f"--data-dir={store / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.post("/v3/maintenance/status", {})
                return
            time.sleep(0.05)
        raise AssertionError(f"etcd does not start:\n{self._log.read_text()}")

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

    def kill(self) -> None:
        """At once, as a machine that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self._held.close()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
