"""What this rank has launched and its device has not finished, where the device tells beforehand."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from wavepp_worker.model.stage import Completion


@runtime_checkable
class KnownEnd(Protocol):
    """A completion that tells beforehand when, in nanoseconds of the device's clock."""

    at: int


class DeviceQueue:
    """The waves on a device that runs behind the host. One that computes inside ``forward`` has none."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """``clock`` returns nanoseconds, of the clock that completions are told in."""
        self._clock = clock
        self._ends: deque[int] = deque()

    def launched(self, done: Completion | None) -> None:
        """A wave was launched that ends with ``done``."""
        if isinstance(done, KnownEnd):
            self._forget_ended(self._clock())
            self._ends.append(done.at)

    def left(self) -> list[float]:
        """Seconds from now until each wave that is not finished ends, in launch order."""
        now = self._clock()
        self._forget_ended(now)
        return [(end - now) / 1e9 for end in self._ends]

    def _forget_ended(self, now: int) -> None:
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()
