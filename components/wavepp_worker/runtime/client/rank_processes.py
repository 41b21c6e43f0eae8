"""The rank processes of one engine: spawned together, watched, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from wavepp_worker.runtime.protocol.rank_config import RankConfig

POLL_SECONDS = 0.1


class RankProcesses:
    """Starts one process per rank and reports the first that exits unasked."""

    def __init__(self, configs: list[RankConfig], on_exit: Callable[[int, int], None]) -> None:
        """Spawn the ranks; ``on_exit(rank, exit code)`` comes once, from a watcher thread."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(configs[0].threads)}
        self._on_exit = on_exit
        self._closing = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        for config in configs:
            process = subprocess.Popen(
                [sys.executable, "-m", "wavepp_worker.runtime.rank.main"],
                stdin=subprocess.PIPE,
                env=environment,
            )
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            process.stdin.flush()
        self._watcher = threading.Thread(target=self._watch, name="rank watcher", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def expect_exit(self) -> None:
        """From now on a rank that exits does so because it was asked to."""
        self._closing.set()

    def kill(self) -> None:
        """End all ranks at once: a pipeline with a rank missing is of no use."""
        self._closing.set()
        for process in self._processes:
            process.kill()

    def close(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the ranks to leave, then kill them; idempotent."""
        self._closing.set()
        deadline = time.monotonic() + timeout
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _watch(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            for rank, process in enumerate(self._processes):
                code = process.poll()
                if code is not None and not self._closing.is_set():
                    self._on_exit(rank, code)
                    return
