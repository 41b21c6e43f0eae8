"""Recording what a rank does, in memory and at little cost; the same calls record nothing when it is off."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.trace.slices import Slice

MAX_SLICES = 100_000
"""Most slices that are kept of one rank; the oldest go first."""
NOTHING: AbstractContextManager[None] = nullcontext()


class Named(Protocol):
    """A message about one request."""

    @property
    def request_id(self) -> str: ...


class Timeline:
    """Records the latest slices of one rank. Thread-safe.

    Attributes:
        on: whether it does; else what is recorded is dropped at little cost.
    """

    on = True

    def __init__(self, limit: int = MAX_SLICES, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Keep up to ``limit`` slices; ``clock`` returns nanoseconds."""
        self.now = clock
        self._slices: deque[Slice] = deque(maxlen=limit)
        self._dropped = 0
        self._lock = threading.Lock()

    def record(
        self,
        track: str,
        name: str,
        start: int,
        end: int,
        wave: int | None = None,
        requests: Sequence[str | Named] = (),
        spans: tuple[Span, ...] = (),
    ) -> None:
        """Add one slice; see ``Slice``."""
        if not self.on:
            return
        ids = tuple(item if isinstance(item, str) else item.request_id for item in requests)
        made = Slice(track, name, start, end, wave, ids, spans)
        with self._lock:
            self._dropped += len(self._slices) == self._slices.maxlen
            self._slices.append(made)

    def span(
        self, track: str, name: str, wave: int | None = None, requests: Sequence[str | Named] = ()
    ) -> AbstractContextManager[None]:
        """Record how long the body of a ``with`` statement takes, also if it fails."""
        return _Open(self, track, name, wave, requests) if self.on else NOTHING

    def take(self) -> tuple[list[Slice], int]:
        """The slices since the last call, and how many before them were dropped meanwhile."""
        with self._lock:
            taken, dropped = list(self._slices), self._dropped
            self._slices.clear()
            self._dropped = 0
        return taken, dropped


class _Open:
    """A slice that has begun."""

    __slots__ = ("_requests", "_start", "_timeline", "_wave", "_what")

    def __init__(
        self, timeline: Timeline, track: str, name: str, wave: int | None, requests: Sequence[str | Named]
    ) -> None:
        self._timeline = timeline
        self._what = (track, name)
        self._wave = wave
        self._requests = requests

    def __enter__(self) -> None:
        self._start = self._timeline.now()

    def __exit__(self, *_: object) -> None:
        end = self._timeline.now()
        self._timeline.record(*self._what, self._start, end, self._wave, self._requests)


class NoTimeline(Timeline):
    """Records nothing, in as little time as possible; ``now`` is always 0."""

    on = False

    def __init__(self) -> None:
        super().__init__(0, int)

    def record(self, *_: Any, **__: Any) -> None:
        return None

    def span(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return NOTHING


OFF = NoTimeline()
