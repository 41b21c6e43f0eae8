"""Rank 0's lanes (paper, section 4.6): which admitted requests share waves, and what is in flight of them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.planning.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import (
    NOBODY,
    LaneAborted,
    LaneAdmitted,
    LaneEnded,
    LaneProgress,
    LaneScheduled,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.protocol.whereabouts import InLanes


class Lanes:
    """Admitted requests in first-come order, and the ring of waves that carry their chunks.

    The oldest ``max_num_seqs`` requests share waves; who is behind them keeps its lease until one of those is
    scheduled to its end. Who reuses what another is to compute has no place before that is in a wave, or in the very
    wave. Methods that change a lane return what the WAVE thread has to hear of it.
    """

    def __init__(self, ring: Ring, planner: Planner, max_num_seqs: int, *, riders: bool = False) -> None:
        """``riders``: who reads may be in one wave with the chunk that computes it, behind that."""
        self.ring = ring
        self._riders = riders
        self._planner = planner
        self._max_num_seqs = max_num_seqs
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._leased: set[str] = set()
        self._aborted: set[str] = set()
        self._probes: set[str] = set()
        self._after: dict[str, str] = {}
        self._ownerless: set[str] = set()

    def __len__(self) -> int:
        """Requests with tokens that no wave carries yet."""
        return len(self._lanes)

    @property
    def in_flight(self) -> int:
        """Waves in flight that somebody asked for: all but those of probes alone."""
        if not self._probes:
            return len(self.ring)
        return sum(map(self.asked_for, self.ring.waves()))

    def asked_for(self, spans: Iterable[Span]) -> bool:
        """Whether somebody asked for some of these, rather than all being of probes."""
        return not self._probes or any(span.request_id not in self._probes for span in spans)

    def in_no_wave(self) -> tuple[int, int]:
        """Requests that no wave in flight carries although they have tokens left, and the tokens that all have left."""
        waiting = sum(not self.ring.carries(request_id) for request_id in self._lanes)
        return waiting, sum(lane.left for lane in self._lanes.values())

    def take(self, event: LaneAdmitted | LaneAborted) -> list[LaneProgress]:
        """Account for a request that may run from now on, or shall not run any further."""
        request_id = event.request_id
        if isinstance(event, LaneAdmitted):
            self._lanes[request_id] = Lane(request_id, event.start, event.end, probe=event.probe)
            self._leased.add(request_id)
            if event.probe:
                self._probes.add(request_id)
            if event.after:
                self._after[request_id] = event.after
            return []
        lane = self._lanes.get(request_id)
        if lane is not None and lane.next < event.until:
            lane.whole = lane.whole and event.until == lane.end
            lane.end = event.until
            self._ownerless.add(request_id)
            return []
        self._lanes.pop(request_id, None)
        self._leased.discard(request_id)
        self._after.pop(request_id, None)
        self._ownerless.discard(request_id)
        if self.ring.carries(request_id):
            self._aborted.add(request_id)
            return []
        self._probes.discard(request_id)
        return [LaneEnded(request_id, aborted=True)]

    def next_to_materialise(self) -> str | None:
        """The first request with a place in the waves whose blocks are not its own yet."""
        if not self._leased:
            return None
        return next((lane.request_id for lane in self._open() if lane.request_id in self._leased), None)

    def materialised(self, request_id: str) -> None:
        """The request's blocks are its own."""
        self._leased.discard(request_id)

    def propose(
        self,
        waiting: RequestsWaiting = NOBODY,
        slack: float = 0.0,
        held: float = 0.0,
        now: float | None = None,
    ) -> tuple[Span, ...]:
        """The next wave; empty if the ring is full, no lane has work, or the planner waits for more.

        Args:
            waiting: requests that are not admitted yet.
            slack: seconds for which rank 0's device has work already.
            held: seconds since this was first empty though ``startable`` and rank 0's device was about to run dry.
            now: seconds, on a clock that never goes back.
        """
        if self.ring.full:
            return ()
        return self._planner.propose(self._view(waiting, slack, held, now))

    @property
    def startable(self) -> bool:
        """Whether some lane could be launched, and there is room in the ring."""
        return not self.ring.full and next(self._open(), None) is not None

    def launch(self, spans: tuple[Span, ...]) -> tuple[int, list[LaneProgress]]:
        """Put a proposed wave, or less of it, in flight; returns its id.

        Raises:
            PositionMismatch: a span is not the next work of a lane, or reads what is computed later.
            ValueError: the ring is full.
        """
        self._board(spans)
        self._planner.accept(self._view(), spans)
        wave_id = self.ring.launch(spans)
        ended: list[LaneProgress] = []
        for span in spans:
            self._after.pop(span.request_id, None)
            if self._lanes[span.request_id].left:
                continue
            del self._lanes[span.request_id]
            if span.request_id in self._ownerless:
                self._ownerless.remove(span.request_id)
                self._aborted.add(span.request_id)
            else:
                ended.append(LaneScheduled(span.request_id))
        return wave_id, ended

    def complete(self, wave_id: int, seconds: float = 0.0) -> list[LaneProgress]:
        """The last rank has executed a wave; the slowest took ``seconds``, 0 if that is not known.

        Raises:
            PositionMismatch: ``wave_id`` is not the oldest wave in flight.
        """
        ended: list[LaneProgress] = []
        spans = self.ring.complete(wave_id)
        # Of an idle night's probes, a planner would learn that waves have one token.
        if self.asked_for(spans):
            self._planner.observe(spans, seconds)
        for span in spans:
            if self.ring.carries(span.request_id):
                continue
            if span.request_id in self._aborted:
                self._aborted.discard(span.request_id)
                self._probes.discard(span.request_id)
                ended.append(LaneEnded(span.request_id, aborted=True))
            elif span.last:
                self._probes.discard(span.request_id)
                ended.append(LaneEnded(span.request_id, aborted=False))
        return ended

    def whereabouts(self, request_ids: Iterable[str]) -> Iterator[InLanes]:
        """Where those of these requests are that have a lane or are in a wave; changes nothing."""
        places = {request_id: place for place, request_id in enumerate(self._lanes, start=1)}
        for request_id in request_ids:
            lane, waves = self._lanes.get(request_id), self.ring.carrying(request_id)
            if lane is None and not waves:
                continue
            after = self._after.get(request_id, "")
            writer = self._lanes.get(after)
            behind = 0 if lane is None or writer is None else max(0, lane.next - writer.next)
            yield InLanes(
                request_id=request_id,
                place=places.get(request_id, 0),
                lanes=len(self._lanes),
                next=0 if lane is None else lane.next,
                end=0 if lane is None else lane.end,
                after=after if behind else "",
                after_tokens=behind,
                waves=tuple(place for place, _ in waves),
                wave_ids=tuple(wave_id for _, wave_id in waves),
            )

    def check(self) -> None:
        """Raise ValueError unless lanes, leases and ring agree."""
        self.ring.check()
        if not self._leased <= self._lanes.keys():
            raise ValueError("a request without a lane counts as leased")
        if not self._after.keys() | self._ownerless <= self._lanes.keys():
            raise ValueError("a request without a lane waits for another, or goes on without an owner")
        if any(not self.ring.carries(request_id) for request_id in self._aborted):
            raise ValueError("an aborted request that no wave carries was not reported as ended")

    def _view(
        self,
        waiting: RequestsWaiting = NOBODY,
        slack: float = 0.0,
        held: float = 0.0,
        now: float | None = None,
    ) -> PipelineView:
        """What the planner may put into the next wave, and what is in flight."""
        lanes = tuple(self._open())
        behind = tuple(self._lanes[request_id] for request_id in self._after)
        return PipelineView(
            lanes,
            tuple(self.ring.waves()),
            admitting=waiting.requests,
            admitting_tokens=waiting.tokens,
            slack=slack,
            held=held,
            behind=behind,
            riding=self._after if self._riders else {},
            now=now,
            known=self._lanes.keys(),
        )

    def _board(self, spans: tuple[Span, ...]) -> None:
        """Check that everybody in a wave reads what is in an earlier one, or before it in this one."""
        if not self._after:
            return
        reached: dict[str, int] = {}
        for span in spans:
            after, lane = self._after.get(span.request_id), self._lanes.get(span.request_id)
            rides = after is not None and lane is not None and not self._readable(lane)
            if rides and (not self._riders or reached.get(after or "", 0) < span.start):
                raise PositionMismatch(f"proposed {span}, which reads blocks that {after} has yet to compute")
            reached[span.request_id] = span.start + span.length

    def _open(self) -> Iterator[Lane]:
        """The lanes that have a place in the waves."""
        lanes: Iterable[Lane] = self._lanes.values()
        if self._after:
            lanes = (lane for lane in lanes if self._readable(lane))
        return islice(lanes, self._max_num_seqs)

    def _readable(self, lane: Lane) -> bool:
        """Whether all that a lane reuses is in waves."""
        after = self._after.get(lane.request_id)
        if after is None:
            return True
        writer = self._lanes.get(after)
        if writer is not None and writer.next < lane.next:
            return False
        del self._after[lane.request_id]
        return True
