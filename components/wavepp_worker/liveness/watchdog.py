"""Notices that a thread of this process does not get on, whatever it hangs in."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from wavepp_worker.errors import StepTimeout
from wavepp_worker.liveness.awake_clock import AwakeClock

WATCH_SECONDS = 0.5
"""How often the watchdog looks."""


@dataclass(frozen=True, eq=False)
class Step:
    """What a thread is busy with, how many seconds it may take, and the thread's number."""

    what: str
    seconds: float
    thread: int


class Watched:
    """One thread's word on what it does. Only that thread calls ``busy`` and ``idle``; neither waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.step: Step | None = None

    def busy(self, what: str, seconds: float) -> None:
        """From now on the thread does ``what``, which may take so many seconds."""
        self.step = Step(what, seconds, threading.get_ident())

    def idle(self) -> None:
        """From now on the thread waits for work, for as long as there is none."""
        self.step = None


class Watchdog:
    """A thread that tells when another one takes longer for a step than it may; once, and then it ends."""

    def __init__(
        self,
        on_hang: Callable[[StepTimeout], None],
        on_look: Callable[[], None] | None = None,
        period: float = WATCH_SECONDS,
    ) -> None:
        """``on_hang`` and ``on_look`` (at every look that finds all well) are called by the watchdog's thread."""
        self._on_hang = on_hang
        self._on_look = on_look
        self._period = period
        self._clock = AwakeClock()
        self._threads: list[Watched] = []
        self._seen: dict[Watched, tuple[Step, float]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def watch(self, name: str) -> Watched:
        """Watch a thread, by what it says of itself from now on."""
        watched = Watched(name)
        self._threads.append(watched)
        return watched

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Look no more; idempotent, never waits."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(self._period):
            hung = self._hung(self._clock.read())
            if hung is not None:
                self._on_hang(hung)
                return
            if self._on_look is not None:
                self._on_look()

    def _hung(self, now: float) -> StepTimeout | None:
        for watched in self._threads:
            step = watched.step
            if step is None:
                continue
            seen, since = self._seen.get(watched, (None, now))
            if seen is not step:
                self._seen[watched] = (step, now)
            elif now - since > step.seconds:
                _print_stack(watched.name, step)
                return StepTimeout(
                    f"the {watched.name} thread has been busy with {step.what} for {now - since:.1f} s, "
                    f"which may take {step.seconds:.1f} s; raise wave_timeout if it is only slow"
                )
        return None


def _print_stack(name: str, step: Step) -> None:
    """Where the thread hangs, for whoever has to find out why."""
    frame = sys._current_frames().get(step.thread)
    if frame is not None:
        stack = "".join(traceback.format_stack(frame))
        sys.stderr.write(f"the {name} thread hangs in\n{stack}")
        sys.stderr.flush()
