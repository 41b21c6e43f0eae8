"""Whose turn it is to find out what may come next: whoever has taken least of the threads so far."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count


class GuideTurns:
    """Turns on a few threads that many answers share. Thread-safe.

    One after the other they would wait for whatever others' grammars cost: so an answer that is cheap to follow is
    never behind more than what runs.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: list[tuple[float, int, Callable[[], bytes], Future[bytes]]] = []

    def submit(self, taken: float, find: Callable[[], bytes]) -> Future[bytes]:
        """What ``find`` returns, once it had its turn.

        Args:
            taken: seconds of a thread that the same answer has had so far.

        Raises:
            RuntimeError: the threads are stopped.
        """
        found: Future[bytes] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (taken, next(self._numbers), find, found))
            self._threads.submit(self._next)
        return found

    def close(self) -> None:
        """Nobody else has a turn."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for *_, found in waiting:
            found.cancel()

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            _, _, find, found = heapq.heappop(self._waiting)
        if not found.set_running_or_notify_cancel():
            return
        try:
            found.set_result(find())
        except Exception as error:
            found.set_exception(error)
