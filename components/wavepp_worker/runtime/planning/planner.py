"""What the next wave is made of: a view of the pipeline in, spans out (paper, section 4.6). Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.waves import Span

LAUNCH_MARGIN_SECONDS = 0.005
"""Seconds before rank 0's device runs dry at which the next wave has to be launched, however small it is."""
LONGEST_HOLD_SECONDS = 0.025
"""Seconds for which a planner may hold what it could launch once rank 0's device is about to run dry."""


@dataclass(slots=True)
class Lane:
    """A request's place across waves: tokens ``[next, end)`` of its prompt are not scheduled yet.

    Attributes:
        whole: ``end`` is where the prompt ends; else where those end who read from a request without an owner.
        probe: nobody asked for it, and nothing is to be learned from it.
    """

    request_id: str
    next: int
    end: int
    whole: bool = True
    probe: bool = False

    @property
    def left(self) -> int:
        """Tokens not scheduled yet."""
        return self.end - self.next

    def span(self, length: int) -> Span:
        """The lane's next ``length`` tokens."""
        return Span(self.request_id, self.next, length, self.whole and self.next + length == self.end)


@dataclass(frozen=True, slots=True)
class PipelineView:
    """What one decision is made from.

    Attributes:
        lanes: admitted requests with tokens left, first come first served. Planners only read them.
        in_flight: the spans of each wave in the ring, oldest first.
        admitting: requests that wait to be admitted.
        admitting_tokens: that these will compute, as far as is known.
        slack: seconds for which rank 0's device has work already.
        held: seconds since the planner first held what it could have launched, though rank 0's device was about to
            run dry.
        behind: admitted requests that reuse what is in no wave yet, first come first. They are not in ``lanes`` before
            it is.
        riding: whom each of ``behind`` reads from, if it may be in one wave with the chunk that it waits for; empty if
            nobody may.
        now: seconds, on a clock that never goes back; None if there is none.
        known: of all that have a lane, also those that older ones have crowded out of ``lanes``.
    """

    lanes: Sequence[Lane]
    in_flight: Sequence[tuple[Span, ...]] = ()
    admitting: int = 0
    admitting_tokens: int = 0
    slack: float = 0.0
    held: float = 0.0
    behind: Sequence[Lane] = ()
    riding: Mapping[str, str] = field(default_factory=dict)
    now: float | None = None
    known: Container[str] = ()


class Planner(ABC):
    """Chooses a wave's spans. Decisions depend only on the views, accepted spans and executed waves seen so far."""

    @abstractmethod
    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        """The next wave; at most one span per lane. Who rides comes after the chunk that it reads.

        Empty if no lane has work, or if waiting pays: then ask again after the next admission or the next
        completed wave, when the slack is down to ``LAUNCH_MARGIN_SECONDS``, and from then on every millisecond, until
        ``held`` is ``LONGEST_HOLD_SECONDS``, when no planner waits any more.
        """

    def accept(self, view: PipelineView, spans: Sequence[Span]) -> None:
        """Advance the view's lanes by the spans that are launched: the proposed ones, or less.

        Raises:
            PositionMismatch: a span is not the next work of a lane.
        """
        riders = view.behind if view.riding else ()
        lanes = {lane.request_id: lane for lane in (*view.lanes, *riders)}
        for span in spans:
            lane = lanes.get(span.request_id)
            if lane is None or lane.next != span.start or not 0 < span.length <= lane.left:
                raise PositionMismatch(f"accepted {span}, but the planner has {lane} for that request")
        for span in spans:
            lanes[span.request_id].next += span.length

    def observe(self, spans: Sequence[Span], seconds: float) -> None:  # noqa: B027
        """A wave of these spans was executed; its slowest stage took that long. Most planners do not care."""
