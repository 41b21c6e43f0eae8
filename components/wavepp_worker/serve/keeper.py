"""Keeps one process of a plan running: starts it, watches its health, reports its death, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from wavepp_worker.serve.backoff import Backoff
from wavepp_worker.serve.child import Child
from wavepp_worker.serve.health import get
from wavepp_worker.serve.launch_plan import Process
from wavepp_worker.serve.log import Log

CONFIG_EXIT_CODE = 2
"""How a process says that its configuration cannot work, so that starting it again is no use."""

_MOST_FAILED_STARTS = 5
_POLL_SECONDS = 0.25
_WATCH_SECONDS = 2.0
_UNHEALTHY_SECONDS = 5.0
_KILLED_SECONDS = 10.0


class StartFailed(Exception):
    """The graph cannot come up; the message is for the user.

    Attributes:
        code: exit code for the launcher.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Keeper:
    """One process of the plan, over all its lives."""

    def __init__(
        self,
        process: Process,
        environment: Mapping[str, str],
        scratch: Path,
        log: Log,
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            process: what to run.
            environment: its environment, before its own variables.
            scratch: its temporary directory, empty at the beginning of each life and gone after it.
            log: where its output goes.
            changed: called whenever ``pid``, ``ready`` or ``restarts`` does.
        """
        self.process = process
        self.ready = False
        self.restarts = 0
        self._environment = {**environment, "TMPDIR": str(scratch), **process.env}
        self._scratch = scratch
        self._log = log
        self._changed = changed
        self._child: Child | None = None
        self._ever_ready = False
        self._failed_starts = 0
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._backoff = Backoff()
        path = "/v1/models" if process.kind == "frontend" else "/health"
        self._health_url = process.url + path

    @property
    def pid(self) -> int | None:
        """None between two lives."""
        return None if self._child is None else self._child.pid

    @property
    def last_lines(self) -> list[str]:
        return [] if self._child is None else list(self._child.last_lines)

    async def run(self) -> None:
        """Keep it running until ``stop``.

        Raises:
            StartFailed: it refused its configuration, or failed time after time, and was never ready.
        """
        try:
            while not self._stopping.is_set():
                pause = await self._live()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), timeout=pause)
                self.restarts += 1
        finally:
            self._ended.set()

    async def stop(self, seconds: float) -> None:
        """Ask it to leave, and kill it if it has not within ``seconds``; for good."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout=seconds)
        except asyncio.TimeoutError:
            self._log.say(f"{self.process.label} did not stop within {seconds:.0f} s and is killed", "red")
            self.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout=_KILLED_SECONDS)

    def kill(self) -> None:
        """End it and its process group at once, for good."""
        self._stopping.set()
        if self._child is not None:
            self._child.signal_group(signal.SIGKILL)

    def no_restart(self) -> None:
        """From now on it may end."""
        self._stopping.set()

    async def _live(self) -> float:
        """One life; returns the pause before the next, in seconds."""
        label = self.process.label
        began = time.monotonic()
        try:
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            child = await Child.start(
                self.process.argv, self._environment, lambda line: self._log.line(label, line)
            )
        except OSError as error:
            raise StartFailed(f"{label} cannot be started: {error}") from error
        self._child = child
        self._changed()
        if self._stopping.is_set():
            child.terminate()
        watcher = asyncio.create_task(self._watch(child, began))
        try:
            code = await child.wait()
        finally:
            watcher.cancel()
            child.signal_group(signal.SIGKILL)
            # A process that is killed leaves its sockets and files to us.
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        self.ready = False
        self._changed()
        if self._stopping.is_set():
            return 0.0
        if code == CONFIG_EXIT_CODE and not self._ever_ready:
            raise StartFailed(f"{label}: {_sentence(self.last_lines)}", CONFIG_EXIT_CODE)
        self._failed_starts += not self._ever_ready
        if self._failed_starts == _MOST_FAILED_STARTS:
            raise StartFailed(
                f"{label} {_ending(code)} {_MOST_FAILED_STARTS} times without ever being ready; "
                f"it said last: {self.last_lines[-1] if self.last_lines else 'nothing'}"
            )
        pause = self._backoff.after(time.monotonic() - began)
        self._log.death(label, f"{_ending(code)}, and is restarted in {pause:.0f} s", self.last_lines)
        return pause

    async def _watch(self, child: Child, began: float) -> None:
        """Follow its health; one that keeps saying it is not well is ended, to be started again."""
        sick_since: float | None = None
        while True:
            status, _ = await get(self._health_url)
            now = time.monotonic()
            if status == 200:
                sick_since = None
                if not self.ready:
                    again = "again " if self._ever_ready else ""
                    self.ready = self._ever_ready = True
                    self._log.say(f"{self.process.label} is up {again}({now - began:.1f} s)", "green")
                    self._changed()
                if self.process.kind == "frontend":
                    # It has no health of its own to report, and logs every question.
                    return
            elif status >= 500 and self.ready:
                sick_since = sick_since or now
                if now - sick_since > _UNHEALTHY_SECONDS:
                    self._log.say(
                        f"{self.process.label} has reported itself unhealthy for {now - sick_since:.0f} s "
                        "and is killed",
                        "red",
                    )
                    child.signal_group(signal.SIGKILL)
                    return
            await asyncio.sleep(_WATCH_SECONDS if self.ready else _POLL_SECONDS)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _sentence(last_lines: list[str]) -> str:
    for line in reversed(last_lines):
        if "error:" in line:
            return line.partition("error:")[2].strip()
    return last_lines[-1] if last_lines else "refused its configuration without a word"
