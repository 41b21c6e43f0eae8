"""``dynamo serve`` as a process, for tests: started, waited for, stopped, and found to have left nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavepp_worker.liveness.stop_times import GRACE_VARIABLE
from wavepp_worker.serve.guard import processes_of

from tests.support.warm_processes import WarmProgram

REPOSITORY = Path(__file__).parents[2]
_SPARING = {
    "COLUMNS": "200",
    # A tenth of the machine's memory is more than a tiny model's tests need, and takes long to be zeroed.
    "DYN_WAVEPP_KV_TOKENS": "32768",
    # Dynamo's 5 s, for each kind of worker, would be most of what many tests take.
    GRACE_VARIABLE: "1",
}
"""What tests set that the launcher does not."""
SERVE = (sys.executable, "-m", "wavepp_worker.serve.cli", "serve")


@dataclass
class RunningGraph:
    """A launcher and what it says of itself."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    log_file: Path

    def state(self) -> dict[str, Any]:
        """``state.json``, empty before there is one."""
        try:
            return json.loads((self.run_dir / "state.json").read_text())
        except FileNotFoundError:
            return {}

    def log(self) -> str:
        """Everything the launcher printed, its errors included."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def base_url(self) -> str:
        return self.state()["base_url"]

    @property
    def model(self) -> str:
        return self.state()["model"]

    def processes(self, service: str) -> list[dict[str, Any]]:
        """``pid``, ``port``, ``ready``, ``restarts`` of each replica of a service."""
        return [entry for entry in self.state().get("processes", ()) if entry["service"] == service]

    def pids(self) -> list[int]:
        """Every process of the run but the launcher, children's children included."""
        return processes_of(str(self.run_dir))

    def wait_for(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until ``what()`` is true, and return it; fails with the log if it does not become so."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := what():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not so within {seconds} s; the log:\n{self.log()}")

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Wait for the ready line; fails with the log if the launcher ends first."""

        def ready_or_dead() -> bool:
            assert self.process.poll() is None, f"dynamo serve ended before it was ready:\n{self.log()}"
            return "Ctrl-C stops everything" in self.log()

        self.wait_for(ready_or_dead, seconds)

    def wait_exit(self, seconds: float = 60.0) -> int:
        """The exit code, having found that no process and no file of the run is left."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"dynamo serve did not end within {seconds} s:\n{self.log()}") from error
        self.assert_nothing_left()
        return code

    def stop(self, number: int = signal.SIGINT, seconds: float = 60.0) -> int:
        """Ask it to stop; returns as ``wait_exit``."""
        self.process.send_signal(number)
        return self.wait_exit(seconds)

    def assert_nothing_left(self, seconds: float = 10.0) -> None:
        """Neither a process of the run nor its directory is there, at the latest after ``seconds``."""
        self.wait_for(lambda: not self.pids() and not self.run_dir.exists(), seconds)


Starter = Callable[..., contextlib.AbstractContextManager[RunningGraph]]
"""A fixture that starts a graph, given further words of the command line."""


@contextlib.contextmanager
def start_graph(
    graph: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    to: Path | None = None,
    warm: bool = False,
) -> Iterator[RunningGraph]:
    """``dynamo serve GRAPH WORDS...``, without waiting for it; whatever is left at the end is killed.

    Args:
        to: where its output goes, if ``RunningGraph.log`` is not asked for it.
        warm: its processes begin with torch imported, as of ``warm_processes``; not worth while where none needs it.
    """
    # Not pytest's directories: sockets need short paths.
    scratch = Path(tempfile.mkdtemp(prefix="gp-"))
    run_dir = scratch / "run"
    command = [*SERVE, graph, *words, "--run-dir", str(run_dir)]
    with (to or scratch / "log").open("wb") as log:
        process = (WarmProgram if warm else subprocess.Popen)(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_SPARING, **(env or {})},
            cwd=cwd,
        )
    running = RunningGraph(process, run_dir, scratch / "log")
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in running.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def serve_graph(
    graph: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 180.0,
    warm: bool = True,
) -> Iterator[RunningGraph]:
    """A graph that is ready; afterwards it is stopped as by Ctrl-C, has to exit with 0 and leave nothing.

    Args:
        words: further arguments, such as ``--PrefillWorker.pp=3``.
        env: on top of this process's environment.
        cwd: the directory that ``graph`` is found from.
        seconds: until it has to be ready.
        warm: as of ``start_graph``.
    """
    with start_graph(graph, *words, env=env, cwd=cwd, warm=warm) as running:
        running.wait_ready(seconds)
        yield running
        if running.process.poll() is None:
            code = running.stop()
            assert code == 0, f"dynamo serve ended with {code}:\n{running.log()}"
