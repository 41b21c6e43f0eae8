"""Virtual time: an event queue, and hosts that are charged for what production code takes on this machine."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Effect = Callable[[], None] | None
Task = Callable[[], Effect]


class Events:
    """What happens when, in seconds; what is due at one instant happens in the order it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (max(when, self.now), self._number, act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, act, *arguments)

    def clock_ns(self) -> int:
        return round(self.now * 1e9)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._queue:
            self.now, _, act, arguments = heapq.heappop(self._queue)
            act(*arguments)


class Host:
    """One rank's process. Its threads share one interpreter, so one task runs at a time, first come first served.

    A task takes as long as its CPU time here times ``charge``; its effect, what others see of it, comes at its end.
    """

    def __init__(self, events: Events, charge: float) -> None:
        self._events = events
        self._charge = charge
        self._tasks: deque[Task] = deque()
        self._busy = False
        self._begun: float | None = None
        self.seconds = 0.0

    def do(self, task: Task) -> None:
        self._tasks.append(task)
        self._next()

    def clock_ns(self) -> int:
        """Virtual time as the running task sees it."""
        spent = 0.0 if self._begun is None else (time.thread_time() - self._begun) * self._charge
        return round((self._events.now + spent) * 1e9)

    def _next(self) -> None:
        if self._busy or not self._tasks:
            return
        self._busy = True
        task = self._tasks.popleft()
        self._begun = time.thread_time()
        effect = task()
        seconds = (time.thread_time() - self._begun) * self._charge
        self._begun = None
        self.seconds += seconds
        self._events.at(self._events.now + seconds, self._end, effect)

    def _end(self, effect: Effect) -> None:
        self._busy = False
        if effect is not None:
            effect()
        self._next()
