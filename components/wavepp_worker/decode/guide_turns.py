"""Whose turn it is to find out what may come next: whoever has taken least of the threads so far."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import count


@dataclass(order=True)
class _Search:
    taken: float
    number: int
    slow: bool
    find: Callable[[], bytes] = field(compare=False)
    found: Future[bytes] = field(compare=False)

    def run(self) -> None:
        try:
            self.found.set_result(self.find())
        except Exception as error:
            self.found.set_exception(error)


class GuideTurns:
    """Turns on a few threads that many answers share. Thread-safe.

    One after the other they would wait for whatever others' grammars cost: so those come first that have taken least,
    and where there are several threads, one is left to answers that are cheap to follow.
    """

    def __init__(self, threads: Executor, count_of_threads: int) -> None:
        self._threads = threads
        self._most_slow = max(1, count_of_threads - 1)
        self._slow = 0
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: list[_Search] = []
        self._slow_waiting: list[_Search] = []

    def submit(self, taken: float, slow: bool, find: Callable[[], bytes]) -> Future[bytes]:
        """What ``find`` returns, once it had its turn.

        Args:
            taken: seconds that the same answer has had a thread so far.
            slow: whether it is known to take long.

        Raises:
            RuntimeError: the threads are stopped.
        """
        search = _Search(taken, next(self._numbers), slow, find, Future())
        with self._lock:
            heapq.heappush(self._slow_waiting if slow else self._waiting, search)
            self._threads.submit(self._next)
        return search.found

    def close(self) -> None:
        """Nobody else has a turn."""
        with self._lock:
            waiting = self._waiting + self._slow_waiting
            self._waiting, self._slow_waiting = [], []
        for search in waiting:
            search.found.cancel()

    def _next(self) -> None:
        while (search := self._taken_out()) is not None:
            try:
                if search.found.set_running_or_notify_cancel():
                    search.run()
            finally:
                with self._lock:
                    self._slow -= search.slow

    def _taken_out(self) -> _Search | None:
        """Who is next, if anybody that may be."""
        with self._lock:
            may_be = [self._waiting] if self._slow >= self._most_slow else [self._waiting, self._slow_waiting]
            first = min(
                (waiting for waiting in may_be if waiting), key=lambda waiting: waiting[0], default=None
            )
            if first is None:
                return None
            search = heapq.heappop(first)
            self._slow += search.slow
            return search
