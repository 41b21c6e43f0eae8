"""The process that reads the decisions of Dynamo's planner and tells it which are carried out; kept running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping

import msgspec

from wavepp_worker.serve.backoff import Backoff
from wavepp_worker.serve.child import Child
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.scaling import Decision

LABEL = "planner"
"""The name its lines are behind."""
DECIDED = "DECIDED "
"""What the line begins with by which it tells of a decision."""
MODULE = "wavepp_worker.dynamo.planner_client"

_RESTARTS_PER_MINUTE = 10


class PlannerLink:
    """The latest decision, as far as it can be read."""

    def __init__(self, namespace: str, environment: Mapping[str, str], log: Log) -> None:
        """
        Args:
            namespace: Dynamo's, of the planner.
            environment: of the process.
        """
        self._argv = (sys.executable, "-m", MODULE, "--namespace", namespace)
        # What Dynamo says of an etcd that is away, the process says itself, once.
        quiet = {} if "DYN_LOG" in os.environ else {"DYN_LOG": "error"}
        self._environment = {**environment, **quiet}
        self._log = log
        self._child: Child | None = None
        self._latest: Decision | None = None
        self._changed = asyncio.Event()
        self._done: Decision | None = None

    async def run(self) -> None:
        """Keep the process running until this is cancelled."""
        backoff = Backoff(_RESTARTS_PER_MINUTE)
        while True:
            began = time.monotonic()
            try:
                self._child = await Child.start(self._argv, self._environment, self._on_line, talks=True)
            except OSError as error:
                self._log.say(f"the planner's decisions cannot be read: {error}", "red")
            else:
                try:
                    self._tell()
                    code = await self._child.wait()
                finally:
                    self._child.kill()
                    self._child = None
                self._log.say(
                    f"nobody reads the planner's decisions at the moment (exit code {code}): there are as many "
                    "replicas as before",
                    "yellow",
                )
            now = time.monotonic()
            await asyncio.sleep(backoff.after(now - began, now))

    async def changed(self, seconds: float | None) -> Decision | None:
        """The latest decision, as soon as it is another than at the last call, or after ``seconds``."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()
        return self._latest

    def carried_out(self, decision: Decision) -> None:
        """Have the planner told, as soon as it can be."""
        self._done = decision
        self._tell()

    def _tell(self) -> None:
        if self._child is not None and self._done is not None:
            self._child.tell(msgspec.json.encode(self._done).decode() + "\n")

    def _on_line(self, line: str) -> None:
        if not line.startswith(DECIDED):
            self._log.line(LABEL, line, settled=True)
            return
        decision = msgspec.json.decode(line.removeprefix(DECIDED), type=Decision)
        if decision != self._latest:
            self._latest = decision
            self._changed.set()
