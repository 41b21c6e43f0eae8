"""Rank 0's lanes: which admitted requests share waves, and what is in flight of them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from wavepp_worker.runtime.planning.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneAdvance,
    LaneEnded,
    LaneScheduled,
)
from wavepp_worker.runtime.protocol.waves import Span


class Lanes:
    """Admitted requests in first-come order, and the ring of waves that carry their chunks.

    Methods that change a lane return what the WAVE thread has to hear of it.
    """

    def __init__(self, ring: Ring, planner: Planner, max_batch: int) -> None:
        self.ring = ring
        self._planner = planner
        self._max_batch = max_batch
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._leased: set[str] = set()
        self._aborted: set[str] = set()

    def __len__(self) -> int:
        """Requests with tokens that no wave carries yet."""
        return len(self._lanes)

    def take(self, event: LaneAdmitted | LaneAborted) -> list[LaneAdvance]:
        """Account for a request that may run from now on, or shall not run any further."""
        request_id = event.request_id
        if isinstance(event, LaneAdmitted):
            self._lanes[request_id] = Lane(request_id, event.start, event.end)
            self._leased.add(request_id)
            return []
        self._lanes.pop(request_id, None)
        self._leased.discard(request_id)
        if self.ring.carries(request_id):
            self._aborted.add(request_id)
            return []
        return [LaneEnded(request_id, aborted=True)]

    def next_leased(self) -> str | None:
        """The first request with a place in the waves whose blocks are not its own yet."""
        if not self._leased:
            return None
        open_lanes = islice(self._lanes, self._max_batch)
        return next((request_id for request_id in open_lanes if request_id in self._leased), None)

    def started(self, request_id: str) -> None:
        """The request's blocks are its own."""
        self._leased.discard(request_id)

    def propose(self, admitting: int = 0, slack: float = 0.0) -> tuple[Span, ...]:
        """The next wave; empty if the ring is full, no lane has work, or the planner waits for more.

        Args:
            admitting: requests that are not admitted yet.
            slack: seconds for which rank 0's device has work already.
        """
        if self.ring.full:
            return ()
        return self._planner.propose(self._view(admitting, slack))

    def launch(self, spans: tuple[Span, ...]) -> tuple[int, list[LaneAdvance]]:
        """Put a proposed wave in flight; returns its id."""
        self._planner.accept(self._view(), spans)
        wave_id = self.ring.launch(spans)
        ended: list[LaneAdvance] = []
        for span in spans:
            if span.last:
                del self._lanes[span.request_id]
                ended.append(LaneScheduled(span.request_id))
        return wave_id, ended

    def complete(self, wave_id: int, seconds: float = 0.0) -> list[LaneAdvance]:
        """The last rank has executed a wave; the slowest took ``seconds``, if that is known."""
        ended: list[LaneAdvance] = []
        spans = self.ring.complete(wave_id)
        self._planner.observe(spans, seconds)
        for span in spans:
            if self.ring.carries(span.request_id):
                continue
            if span.request_id in self._aborted:
                self._aborted.discard(span.request_id)
                ended.append(LaneEnded(span.request_id, aborted=True))
            elif span.last:
                ended.append(LaneEnded(span.request_id, aborted=False))
        return ended

    def check(self) -> None:
        """Raise ValueError unless lanes, leases and ring agree."""
        self.ring.check()
        if not self._leased <= self._lanes.keys():
            raise ValueError("a request without a lane counts as leased")
        if any(not self.ring.carries(request_id) for request_id in self._aborted):
            raise ValueError("an aborted request that no wave carries was not reported as ended")

    def _view(self, admitting: int = 0, slack: float = 0.0) -> PipelineView:
        """What shares waves; who is behind the first ``max_batch`` keeps its lease until a lane is free."""
        lanes = tuple(islice(self._lanes.values(), self._max_batch))
        return PipelineView(lanes, tuple(self.ring.waves()), admitting, slack=slack)
