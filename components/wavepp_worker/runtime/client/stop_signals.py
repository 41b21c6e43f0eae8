"""Ctrl-C, and what others send to end a process: a request to stop in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any

from typing_extensions import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, by the main thread, the first signal has ``stop`` called, in a thread of its own.

    So nothing is cut off wherever it stands. A further one raises KeyboardInterrupt there, should the main thread hang.

    Attributes:
        received: the first signal that came, 0 if none has.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.received = 0
        self._stop = stop
        # A signal may come while any lock is held; this queue is made for that.
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stop", daemon=True)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for ``stop``, if it was called."""
        self._wake.put(False)
        try:
            self._thread.join()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        self._wake.put(True)

    def _run(self) -> None:
        if self._wake.get():
            self._stop()
