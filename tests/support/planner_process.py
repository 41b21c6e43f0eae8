"""Dynamo's planner as far as the launcher sees it: the real coordinator, in a process of its own."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping


class PlannerProcess:
    """Decides what it is told to; closed on leaving a ``with`` block, as a planner that is stopped."""

    def __init__(self, namespace: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.planner_program", namespace],
            env={**os.environ, **environment, "DYN_LOG": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._next(60) == ["ready"]

    def __enter__(self) -> PlannerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def decide(self, prefill: int | None, decode: int | None, seconds: float = 30.0) -> int:
        """Make a decision; returns its number, once the coordinator has taken it."""
        words = ["-" if count is None else str(count) for count in (prefill, decode)]
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        word, number, *_ = self._next(seconds)
        assert word == "decided"
        return int(number)

    def wait_done(self, number: int, seconds: float = 60.0) -> None:
        """Return when the coordinator knows that a decision is carried out."""
        assert self._next(seconds) == ["done", str(number)]

    def _next(self, seconds: float) -> list[str]:
        return self._lines.get(timeout=seconds).split()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
