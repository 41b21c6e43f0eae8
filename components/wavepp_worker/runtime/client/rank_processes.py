"""The rank processes of one engine: spawned together, watched, and never left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.liveness.process_state import exit_reason, oom_kills, process_state
from wavepp_worker.runtime.protocol.rank_config import IGNORED_SIGNALS, RankConfig

POLL_SECONDS = 0.1
KILLED_SECONDS = 5.0
"""How long a process that was killed may take to go; one that waits in the kernel may take for ever."""
LAST_WORDS_SECONDS = 0.5
"""How long what a rank said before it left may be on its way."""
RANK_MODULE = "wavepp_worker.runtime.rank.main"

logger = logging.getLogger(__name__)


class RankProcesses:
    """Starts one process per rank and reports the first that exits unasked."""

    def __init__(self, configs: list[RankConfig], on_exit: Callable[[int, str], None]) -> None:
        """Spawn the ranks; ``on_exit(rank, reason)`` comes once, from a watcher thread."""
        environment = with_short_spins({**os.environ, "OMP_NUM_THREADS": str(configs[0].threads)})
        self._on_exit = on_exit
        self._oom_kills = oom_kills()
        self._closing = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        # A Ctrl-C is for all processes of the terminal; a rank inherits this, until it says that it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            for config in configs:
                self._spawn(config, environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._watcher = threading.Thread(target=self._watch, name="rank watcher", daemon=True)
        self._watcher.start()

    def _spawn(self, config: RankConfig, environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            # The rank takes all from its standard input; its number is for whoever looks at processes.
            [sys.executable, "-m", RANK_MODULE, f"--rank={config.rank}"],
            stdin=subprocess.PIPE,
            env=environment,
        )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()

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
                self._kill(process)
            if process.stdin is not None:
                process.stdin.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        try:
            process.wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("rank process %d was killed, but %s", process.pid, process_state(process.pid))

    def _watch(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            for rank, process in enumerate(self._processes):
                code = process.poll()
                if code is not None and not self._closing.is_set():
                    if code > 0:
                        # It has said why; that is on its way.
                        self._closing.wait(LAST_WORDS_SECONDS)
                    self._on_exit(rank, exit_reason(code, self._oom_kills))
                    return
