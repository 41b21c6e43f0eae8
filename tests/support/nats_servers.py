"""A real NATS server with JetStream, that can be killed and started again over the same store."""

from __future__ import annotations

import contextlib
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path

from wavepp_worker.serve.ports import HeldPorts

BINARY = Path(sysconfig.get_path("scripts")) / "nats-server"


class NatsServer:
    """On loopback, at a port of its own for as long as this is there."""

    def __init__(self, store: Path, *settings: str, jetstream: bool = True) -> None:
        """``settings``: further lines of its configuration."""
        self._held = HeldPorts()
        self.port, self._http = self._held.choose(2)
        self.url = f"nats://127.0.0.1:{self.port}"
        self._file = store / "nats.conf"
        self._log = store / "nats.log"
        store.mkdir(parents=True, exist_ok=True)
        lines = [
            f'listen: "127.0.0.1:{self.port}"',
            f'http: "127.0.0.1:{self._http}"',
            f'jetstream {{ store_dir: "{store}" }}' if jetstream else "",
            "max_payload: 16MB",
            *settings,
        ]
        self._file.write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(BINARY), "-c", str(self._file)], stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._http}/healthz", timeout=1).close()
                return
            time.sleep(0.02)
        raise AssertionError(f"the NATS server does not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """At once, as a machine that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self._held.close()
