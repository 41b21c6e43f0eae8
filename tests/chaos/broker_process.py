"""The event broker as a process of its own, so that it can be hurt alone; it is started again when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from types import TracebackType

from wavepp_worker.serve.environment import BROKER_VARIABLE

RESTART_SECONDS = 1.0


class BrokerProcess:
    """Runs from entering to leaving the context."""

    def __init__(self) -> None:
        ports = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as server:
                ports.append(server.getsockname()[1])
        url = f"xsub=tcp://127.0.0.1:{ports[0]} , xpub=tcp://127.0.0.1:{ports[1]}"
        self.environment = {BROKER_VARIABLE: url}
        """What the graph has to be started with."""
        self._closing = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="broker", daemon=True)

    @property
    def pid(self) -> int | None:
        """None between two lives."""
        return self._process.pid if self._process.poll() is None else None

    def __enter__(self) -> BrokerProcess:
        self._keeper.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closing.set()
        self._keeper.join()
        self._process.kill()
        self._process.wait()

    def _keep(self) -> None:
        while not self._closing.wait(RESTART_SECONDS):
            if self._process.poll() is not None:
                self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "wavepp_worker.serve.broker"]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
