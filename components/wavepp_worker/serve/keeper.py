"""Keeps one process of a plan running: starts it, watches its health, reports its death, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.liveness.deaths import Death, DeathNotes
from wavepp_worker.liveness.pause_lines import PAUSED, RESUMED
from wavepp_worker.liveness.process_state import exit_reason, oom_kills
from wavepp_worker.liveness.stop_times import LEAVING
from wavepp_worker.serve.backoff import Backoff
from wavepp_worker.serve.child import Child
from wavepp_worker.serve.health import describe, get
from wavepp_worker.serve.health_watch import HealthWatch, KeepLimits
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.probed_path import HEALTH_PATH
from wavepp_worker.serve.process import Process
from wavepp_worker.serve.queue_server import QUEUE_HEALTH
from wavepp_worker.worker_description import WorkerDescription

CONFIG_EXIT_CODE = 2
"""How a process says that its configuration cannot work, so that starting it again is no use."""

_MOST_FAILED_STARTS = 5
_POLL_SECONDS = 0.25
_WATCH_SECONDS = {"worker": 2.0, "frontend": 10.0, "server": 2.0}
_KILLED_SECONDS = 10.0


_FATAL = "FATAL: "
"""What a worker's last sentence begins with."""


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
        limits: KeepLimits,
        changed: Callable[[], None],
        deaths: DeathNotes,
        forget: Callable[[str], object] | None = None,
    ) -> None:
        """
        Args:
            process: what to run.
            environment: its environment, before its own variables.
            scratch: its temporary directory, empty at the beginning of each life and gone after it.
            log: where its output goes.
            limits: what it is allowed.
            changed: called whenever ``pid``, ``ready``, ``paused``, ``restarts`` or ``about`` does.
            deaths: told at once of an end that nobody asked for, and when it is ready again.
            forget: takes it out of discovery by its id once it is dead; may block for seconds. None if nothing can.
        """
        self.process = process
        self.about: WorkerDescription | None = None
        self.ready = False
        self.paused = False
        self.restarts = 0
        # With its own variables, as it may say itself how its threads wait.
        self._environment = with_short_spins({**environment, "TMPDIR": str(scratch), **process.env})
        self._scratch = scratch
        self._log = log
        self._changed = changed
        self._deaths = deaths
        self._forget_worker = forget
        self._child: Child | None = None
        self._ever_ready = False
        self._failed_starts = 0
        self._leaving = False
        self._cause = ""
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._refusals = 0
        self._limits = limits
        self._backoff = Backoff(limits.restarts_per_minute)

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

    def renew(self, why: str) -> None:
        """End it, to be started again."""
        if self._child is not None:
            self._log.say(f"{self.process.label} {why} and is killed", "red")
            self._child.signal_group(signal.SIGKILL)

    def no_restart(self) -> None:
        """From now on it may end."""
        self._stopping.set()

    async def _live(self) -> float | None:
        """One life; returns the pause before the next in seconds, None if there shall be none."""
        label, self._leaving, self.paused, self._cause = self.process.label, False, False, ""
        began, killed_before = time.monotonic(), oom_kills()
        try:
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            child = await Child.start(self.process.argv, self._environment, self._on_line)
        except OSError as error:
            if not self._ever_ready:
                raise StartFailed(f"{label} cannot be started: {error}") from error
            # No room, descriptor or memory is left for now: what runs of the graph goes on meanwhile.
            pause = self._backoff.after(0.0, time.monotonic())
            self._log.say(
                f"{label} cannot be started now ({error}), and is tried again in {pause:.0f} s", "red"
            )
            return pause
        self._child = child
        self._changed()
        if self._stopping.is_set():
            child.terminate()
        watcher = asyncio.create_task(self._watch(child, began))
        try:
            code = await child.ended()
            # No request fails of a queue's server, so clients are not told of it.
            if not self._stopping.is_set() and self.process.kind != "server":
                self._deaths.note(
                    Death(label, exit_reason(code, killed_before) + self._cause, time.monotonic())
                )
            await self._forget()
            await child.wait()
        finally:
            watcher.cancel()
            child.signal_group(signal.SIGKILL)
            # A process that is killed leaves its sockets and files to us.
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        self.ready = False
        self._changed()
        if self._stopping.is_set():
            return 0.0
        refused = code == CONFIG_EXIT_CODE
        if refused and not self._ever_ready:
            raise StartFailed(f"{label}: {_sentence(self.last_lines)}", CONFIG_EXIT_CODE)
        self._failed_starts += not self._ever_ready
        ending = exit_reason(code, killed_before)
        if self._failed_starts == _MOST_FAILED_STARTS:
            raise StartFailed(
                f"{label} {ending} {_MOST_FAILED_STARTS} times without ever being ready; "
                f"it said last: {self.last_lines[-1] if self.last_lines else 'nothing'}"
            )
        self._refusals = self._refusals + 1 if refused else 0
        if self._refusals == _MOST_FAILED_STARTS:
            # The others go on: it may be this one's directory that is gone.
            self._log.say(
                f"{label} refused its configuration {_MOST_FAILED_STARTS} times in a row and is not started again: "
                f"{_sentence(self.last_lines)}",
                "bold red",
            )
            return None
        now = time.monotonic()
        pause = self._backoff.after(now - began, now)
        again = f"and is restarted in {pause:.0f} s (restart {self.restarts + 1})"
        self._log.death(label, f"{ending}{self._cause}, {again}", self.last_lines)
        return pause

    async def _watch(self, child: Child, began: float) -> None:
        """Follow its health; one that is not well, or does not answer, is ended, to be started again."""
        kind = self.process.kind
        watch = HealthWatch(self._limits, began)
        # Who is told to stop says that it is not well while its last requests end, and ``stop`` sees to that.
        while not self._stopping.is_set():
            status, _ = await get(self.process.url + self._question(watch.ready))
            now = time.monotonic()
            # Who leaves says that it is not well, and is to end its requests.
            verdict = watch.judge(200 if self._leaving and status else status, now)
            if watch.ready and not self.ready and kind == "worker":
                self.about = await describe(self.process.url)
            # With requests, a worker is well by its own account before all of its models are served; and one that has
            # not said its id, as on a busy machine, could not be forgotten.
            awaited = self.process.describes and (self.about is None or self.about.entering)
            # Looked at after the question: it may have been told to stop, or paused, meanwhile.
            if watch.ready and not (self.ready or self._leaving or self.paused or awaited):
                again = "again " if self._ever_ready else ""
                self.ready = self._ever_ready = True
                self._deaths.back(self.process.label, now)
                self._log.say(f"{self.process.label} is up {again}({now - began:.1f} s)", "green")
                self._changed()
            # How long the whole graph may take for its first start, the supervisor knows.
            if verdict is not None and self._ever_ready and not self._stopping.is_set():
                self._log.say(f"{self.process.label} {verdict} and is killed", "red")
                child.signal_group(signal.SIGKILL)
                return
            await asyncio.sleep(_WATCH_SECONDS[kind] if self.ready else _POLL_SECONDS)

    def _on_line(self, line: str) -> None:
        # At the beginning alone: further on, lines have what clients wrote.
        if line.startswith(LEAVING):
            # Somebody told it to stop. It says for a while that it is well, but no frontend finds it.
            self._leaving, self.ready = True, False
            self._changed()
            if not self._stopping.is_set():
                self._deaths.note(Death(self.process.label, "was told to stop", time.monotonic()))
        elif line.startswith(PAUSED):
            # It is well, but no frontend finds it, because somebody wants it so.
            self.paused, self.ready = True, False
            self._deaths.note(Death(self.process.label, "was paused", time.monotonic()))
            self._changed()
        elif line.startswith(RESUMED) and self.paused:
            self.paused, self.ready = False, True
            self._deaths.back(self.process.label, time.monotonic())
            self._changed()
        elif line.startswith(_FATAL) and not self._cause:
            # It lives for a moment yet, in which its requests fail.
            why = line.removeprefix(_FATAL)
            self._cause = f" ({why})"
            if not self._stopping.is_set():
                self._deaths.note(Death(self.process.label, f"failed: {why}", time.monotonic()))
        self._log.line(self.process.label, line, settled=self.ready and not self._stopping.is_set())

    async def _forget(self) -> None:
        """Have no frontend ask the dead one."""
        about, self.about = self.about, None
        if self._forget_worker is not None and about is not None and about.instance is not None:
            await asyncio.to_thread(self._forget_worker, about.instance)

    def _question(self, ready: bool) -> str:
        """What to ask it; of a frontend, workers that it lacks say nothing against it."""
        if self.process.kind == "server":
            return QUEUE_HEALTH
        if self.process.kind == "worker":
            return HEALTH_PATH
        return "/live" if ready else "/v1/models"


def _sentence(last_lines: list[str]) -> str:
    for line in reversed(last_lines):
        if "error:" in line:
            return line.partition("error:")[2].strip()
    return last_lines[-1] if last_lines else "refused its configuration without a word"
