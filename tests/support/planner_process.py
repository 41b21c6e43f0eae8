"""What Dynamo's planner does with a graph, in processes of their own: hears what workers do, and decides."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Self


class Listener:
    """A program that prints lines; killed on leaving a ``with`` block."""

    def __init__(self, module: str, *words: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env={**os.environ, **environment, "DYN_LOG": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.next_line(60) == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def next_line(self, seconds: float) -> str:
        """The next, without its end; fails if none comes."""
        return self._lines.get(timeout=seconds).rstrip("\n")

    def lines(self) -> list[str]:
        """Those that are there."""
        return [self.next_line(0.0) for _ in range(self._lines.qsize())]

    def say(self, line: str) -> None:
        """Let it read a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


class PlannerProcess(Listener):
    """Decides what it is told to."""

    def __init__(self, namespace: str, environment: Mapping[str, str]) -> None:
        super().__init__("tests.support.planner_program", namespace, environment=environment)

    def decide(self, prefill: int | None, decode: int | None, seconds: float = 30.0) -> int:
        """Make a decision; returns its number, once the coordinator has taken it."""
        self.say(" ".join("-" if count is None else str(count) for count in (prefill, decode)))
        word, number, *_ = self.next_line(seconds).split()
        assert word == "decided"
        return int(number)

    def wait_done(self, number: int, seconds: float = 60.0) -> None:
        """Return when the coordinator knows that a decision is carried out."""
        assert self.next_line(seconds) == f"done {number}"


class PassListener(Listener):
    """Hears the forward passes of one endpoint's workers, by Dynamo's own subscriber."""

    def __init__(self, endpoint: str, planes: Sequence[str], environment: Mapping[str, str]) -> None:
        """``planes``: discovery, requests and events, by Dynamo's names."""
        super().__init__("tests.support.forward_pass_program", endpoint, *planes, environment=environment)

    def passes(self) -> list[dict[str, Any]]:
        """Those heard since the last call."""
        return [json.loads(line) for line in self.lines()]
