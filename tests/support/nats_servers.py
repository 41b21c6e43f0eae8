"""A real NATS server with JetStream, that can be killed and started again over the same store."""

from __future__ import annotations

import signal
import sysconfig
import urllib.request
from pathlib import Path

from tests.support.server_process import ServerProcess

BINARY = Path(sysconfig.get_path("scripts")) / "nats-server"


class NatsServer(ServerProcess):
    """As of ``ServerProcess``."""

    name = "the NATS server"
    start_seconds = 10.0

    def __init__(self, store: Path, *settings: str, jetstream: bool = True) -> None:
        """``settings``: further lines of its configuration."""
        store.mkdir(parents=True, exist_ok=True)
        super().__init__(store / "nats.log")
        self.port, self._http = self.held.choose(2)
        self.url = f"nats://127.0.0.1:{self.port}"
        self._file = store / "nats.conf"
        self._lines = [
            f'listen: "127.0.0.1:{self.port}"',
            f'http: "127.0.0.1:{self._http}"',
            f'jetstream {{ store_dir: "{store}" }}' if jetstream else "",
            "max_payload: 16MB",
        ]
        self._configure(settings)
        self.command = [str(BINARY), "-c", str(self._file)]

    def _configure(self, settings: tuple[str, ...]) -> None:
        self._file.write_text("\n".join([*self._lines, *settings]))

    def reload(self, *settings: str) -> None:
        """Go on with others of ``settings``, as an operator who edits its configuration."""
        assert self._process is not None
        self._configure(settings)
        self._process.send_signal(signal.SIGHUP)

    def ask(self) -> None:
        urllib.request.urlopen(f"http://127.0.0.1:{self._http}/healthz", timeout=1).close()
