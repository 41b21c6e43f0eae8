"""What the next wave is made of. Pure: lanes in, spans out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from wavepp_worker.runtime.protocol import Span


@dataclass
class Lane:
    """A request's place across waves: tokens ``[next, end)`` of its prompt are not scheduled yet."""

    request_id: str
    next: int
    end: int

    def take(self, length: int) -> Span:
        """Schedule the lane's next ``length`` tokens."""
        span = Span(self.request_id, self.next, length, self.next + length == self.end)
        self.next += length
        return span


class Planner(Protocol):
    """Chooses a wave's spans from the admitted lanes, in first-come order."""

    def plan(self, lanes: Iterable[Lane]) -> tuple[Span, ...]:
        """The next wave, advancing the lanes by what it schedules; empty if no lane has work."""


class GreedyPlanner:
    """Fills every wave up to a fixed budget of tokens, first come first served (chunked prefill)."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def plan(self, lanes: Iterable[Lane]) -> tuple[Span, ...]:
        left = self._budget
        spans = []
        for lane in lanes:
            if left == 0:
                break
            length = min(left, lane.end - lane.next)
            if length:
                spans.append(lane.take(length))
                left -= length
        return tuple(spans)
