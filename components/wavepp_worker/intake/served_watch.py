"""Notices that no worker takes jobs of a queue, as of one whose name is mistaken, or that nobody reaches its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import Self

from wavepp_worker.errors import QueueError
from wavepp_worker.intake.prefill_queue import PrefillQueue

LOOK_SECONDS = 1.0
SAY_SECONDS = 5.0
"""For how long no worker was seen when it is said."""
GIVE_UP_SECONDS = 300.0
"""For how long no worker was seen when nobody waits any more: as long as a graph may take to start."""
UNREACHED_SECONDS = 300.0
"""For how long the server was not reached when nobody waits any more: else each further job would take its own time."""


class ServedWatch:
    """While entered, looks every second whether a worker takes jobs of a queue, in a thread of its own.

    Attributes:
        reason: why it was given up; None if it was not.
    """

    def __init__(self, queue: PrefillQueue, say: Callable[[str], None], give_up: Callable[[], None]) -> None:
        """
        Args:
            queue: is open while this is entered.
            say: told once each time that workers are missed.
            give_up: called once, after ``GIVE_UP_SECONDS`` without any, or ``UNREACHED_SECONDS`` without the server.
        """
        self.reason: str | None = None
        self._queue = queue
        self._say = say
        self._give_up = give_up
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        seen, said = time.monotonic(), False
        reached = seen
        while not self._over.wait(LOOK_SECONDS):
            served = reachable = True
            try:
                served = self._queue.served()
            except Exception:
                reachable = False
            now = time.monotonic()
            reached = now if reachable else reached
            if now - reached >= UNREACHED_SECONDS:
                self._end(f"the NATS server has not been reached for {UNREACHED_SECONDS:.0f} s")
                return
            if served:
                seen, said = now, False
            elif now - seen >= GIVE_UP_SECONDS:
                self._end(f"{self._sentence()} for {GIVE_UP_SECONDS:.0f} s")
                return
            elif now - seen >= SAY_SECONDS and not said:
                said = True
                self._say(f"{self._sentence()} now; jobs wait for one, {GIVE_UP_SECONDS:.0f} s at most")

    def _end(self, why: str) -> None:
        self.reason = f"{why}; jobs that were sent stay queued, and who sends them again gets their answers"
        self._give_up()

    def _sentence(self) -> str:
        others: list[str] = []
        with suppress(QueueError):
            others = self._queue.others()
        known = f" (other queues there: {', '.join(others)})" if others else ""
        return f"no worker takes jobs of {self._queue.called}{known}"
