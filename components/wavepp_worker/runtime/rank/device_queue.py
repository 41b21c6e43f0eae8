"""What this rank has launched and its device has not finished, where the device runs behind the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wavepp_worker.model.stage import Completion, MeasuredCompletion

OVERDUE_NS = 500_000
"""Nanoseconds that a wave has left whose end was expected by now: so soon somebody looks again."""


@runtime_checkable
class KnownEnd(Protocol):
    """A completion that tells beforehand when, in nanoseconds of the device's clock."""

    at: int


@dataclass
class _Wave:
    """``begun``: when the device began with it, as far as is known; nanoseconds."""

    done: KnownEnd | MeasuredCompletion
    size: float
    begun: int


class DeviceQueue:
    """The waves on a device that runs behind the host. One that computes inside ``forward`` has none.

    When a measured wave ends is expected from its size and from what the one before took for its own.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.monotonic_ns,
        measured: Callable[[float, float], None] = lambda size, seconds: None,
    ) -> None:
        """Put it together.

        Args:
            clock: returns nanoseconds, of the clock that completions are told in.
            measured: told the size and the device seconds of each wave that a ``MeasuredCompletion`` ended, by
                whoever launches or asks next.
        """
        self._clock = clock
        self._measured = measured
        self._waves: deque[_Wave] = deque()
        self._pace = 0.0

    def launched(self, done: Completion | None, size: float = 0.0) -> None:
        """A wave of this size was launched that ends with ``done``; sizes are in any unit."""
        if isinstance(done, KnownEnd | MeasuredCompletion):
            now = self._clock()
            self._forget_ended(now)
            self._waves.append(_Wave(done, size, now))

    def left(self) -> list[float]:
        """Seconds from now until each wave that is not finished ends, in launch order."""
        now = self._clock()
        self._forget_ended(now)
        ends: list[int] = []
        for wave in self._waves:
            if isinstance(wave.done, KnownEnd):
                ends.append(wave.done.at)
            else:
                begun = max(wave.begun, ends[-1] if ends else 0)
                ends.append(max(begun + round(1e9 * self._pace * wave.size), now + OVERDUE_NS))
        return [(end - now) / 1e9 for end in ends]

    def _forget_ended(self, now: int) -> None:
        while self._waves:
            wave = self._waves[0]
            if isinstance(wave.done, KnownEnd):
                if wave.done.at > now:
                    return
                self._waves.popleft()
                continue
            if not wave.done.over():
                return
            self._waves.popleft()
            seconds = wave.done.seconds()
            if wave.size:
                self._pace = seconds / wave.size
            if self._waves:
                following = self._waves[0]
                following.begun = max(following.begun, wave.begun + round(1e9 * seconds))
            self._measured(wave.size, seconds)
