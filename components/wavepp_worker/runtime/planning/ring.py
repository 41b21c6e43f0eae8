"""The execution ring (paper, section 4.6): which waves are in flight, and which requests they carry. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.waves import Span


class Ring:
    """At most ``size`` waves between rank 0's launch and the last rank's completion: ``R = 2P`` in the paper."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._waves: OrderedDict[int, tuple[Span, ...]] = OrderedDict()
        self._in_flight: Counter[str] = Counter()
        self._next_wave = 0

    def __len__(self) -> int:
        return len(self._waves)

    @property
    def full(self) -> bool:
        """Whether no further wave may be launched until one is complete."""
        return len(self._waves) >= self.size

    def waves(self) -> Iterable[tuple[Span, ...]]:
        """The spans of each wave in flight, oldest first."""
        return self._waves.values()

    def carries(self, request_id: str) -> bool:
        """Whether some wave in flight has a chunk of this request."""
        return self._in_flight[request_id] > 0

    def carrying(self, request_id: str) -> list[tuple[int, int]]:
        """The waves in flight that have a chunk of this request: each one's place, the oldest being 1, and its id."""
        if not self.carries(request_id):
            return []
        return [
            (place, wave_id)
            for place, (wave_id, spans) in enumerate(self._waves.items(), start=1)
            if any(span.request_id == request_id for span in spans)
        ]

    def launch(self, spans: tuple[Span, ...]) -> int:
        """Put a wave in flight and return its id.

        Raises:
            ValueError: the ring is full.
        """
        if self.full:
            raise ValueError(f"{len(self._waves)} waves are in flight, the ring holds {self.size}")
        wave_id = self._next_wave
        self._next_wave += 1
        self._waves[wave_id] = spans
        self._in_flight.update(span.request_id for span in spans)
        return wave_id

    def complete(self, wave_id: int) -> tuple[Span, ...]:
        """Take the oldest wave out of flight.

        Raises:
            PositionMismatch: ``wave_id`` is not the oldest wave in flight.
        """
        oldest = next(iter(self._waves), None)
        if wave_id != oldest:
            raise PositionMismatch(f"wave {wave_id} completed, but the oldest wave in flight is {oldest}")
        spans = self._waves.pop(wave_id)
        for span in spans:
            self._in_flight[span.request_id] -= 1
            # Else every request that was ever served would be kept.
            if not self._in_flight[span.request_id]:
                del self._in_flight[span.request_id]
        return spans

    def check(self) -> None:
        """Raise ValueError unless the counts of requests in flight are those of the waves."""
        counted = Counter(span.request_id for spans in self._waves.values() for span in spans)
        # A counter takes what it lacks for none.
        if dict(counted) != dict(self._in_flight):
            raise ValueError(f"the ring counts {dict(self._in_flight)}, its waves carry {dict(counted)}")
