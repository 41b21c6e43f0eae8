"""A wave on a device that measures, as a GPU does, and ends it when the test says so."""

from __future__ import annotations

import threading

from wavepp_worker.errors import StepTimeout


class MeasuredWave:
    """Implements ``MeasuredCompletion``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()

    def over(self) -> bool:
        return self._ended.is_set()

    def seconds(self) -> float:
        assert self.over(), "as torch's events, it can be asked only then"
        return self._seconds

    def wait(self, timeout: float) -> None:
        if not self._ended.wait(min(timeout, 60.0)):
            raise StepTimeout("the test never ended it")
