"""A server of somebody else's on loopback, that can be killed and started again over the same store."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from wavepp_worker.serve.ports import HeldPorts


class ServerProcess(ABC):
    """Has ports of its own for as long as this is there. Subclasses say what it is.

    Attributes:
        start_seconds: until it has to be up.
    """

    name: str
    start_seconds: float
    command: list[str]

    def __init__(self, log: Path) -> None:
        self.held = HeldPorts()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def ask(self) -> None:
        """Raise OSError unless it is up."""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + self.start_seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.ask()
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.name} does not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """At once, as a machine that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within it, it hangs: its connections stay, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self.held.close()
