"""A graph for a benchmark: started as a user would, stopped at the end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

console = Console(stderr=True)


@dataclass(frozen=True)
class ServedGraph:
    """A running graph: where it listens, what it serves, and its processes."""

    base_url: str
    model: str
    processes: list[dict[str, Any]]

    def ports(self, service: str) -> list[int]:
        """System ports of a service's workers."""
        return [entry["port"] for entry in self.processes if entry["service"] == service]


@contextlib.contextmanager
def serve(graph: str, *words: str, timeout: float = 300.0) -> Iterator[ServedGraph]:
    """``dynamo serve GRAPH WORDS…`` until the block ends.

    Raises:
        RuntimeError: it was not ready within ``timeout`` seconds; the message has its last lines.
    """
    with tempfile.TemporaryDirectory(prefix="wavepp-bench-") as scratch:
        run_dir, log = Path(scratch) / "run", Path(scratch) / "log"
        command = [sys.executable, "-m", "wavepp_worker.serve.cli", "serve", graph, *words]
        with log.open("wb") as sink, console.status(f"starting {graph}"):
            process = subprocess.Popen(
                [*command, "--run-dir", str(run_dir)], stdout=sink, stderr=subprocess.STDOUT
            )
            deadline = time.monotonic() + timeout
            while "Ctrl-C stops everything" not in log.read_text(errors="replace"):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise RuntimeError(f"{graph} is not ready:\n{log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.2)
        try:
            state = json.loads((run_dir / "state.json").read_text())
            yield ServedGraph(state["base_url"], state["model"], state["processes"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
