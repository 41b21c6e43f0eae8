"""A virtual pipeline for planners: exact stage times, no host work, no cache.

``P`` stages each take ``a + b*n + c*sum(context)`` seconds for a wave; ``R = 2P`` waves are in flight; ``c`` clients
send their next request when the previous one is done, or requests come at given times. Nothing here measures admission,
transports or the cache: it compares what planners do with the same requests.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wavepp_worker.runtime.planning.lane_work import spans_work
from wavepp_worker.runtime.planning.planner import (
    LAUNCH_MARGIN_SECONDS,
    LONGEST_HOLD_SECONDS,
    Lane,
    PipelineView,
    Planner,
)
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.rank.loop_turn import HELD_RETRY_SECONDS, WAVES_ON_DEVICE

from bench.common.cells import Shape
from bench.common.percentile import p95


@dataclass(frozen=True)
class VirtualDevice:
    """A pipeline of ``stages`` equal stages.

    Attributes:
        cost: seconds of a wave on one stage.
        hop: seconds from one stage to the next.
        admission: seconds from a request's arrival to its admission.
        max_batch: lanes that share waves.
    """

    stages: int
    cost: WaveCost
    hop: float = 0.0003
    admission: float = 0.002
    max_batch: int = 128


@dataclass(frozen=True)
class PlannerRun:
    """What a run measured: seconds, prompt tokens/s (cached ones included), waves launched."""

    seconds: float
    throughput: float
    p50: float
    p95: float
    waves: int


def simulate(
    device: VirtualDevice,
    planner: Planner,
    requests: Sequence[Shape],
    concurrency: int = 0,
    times: Sequence[float] = (),
    turns: Mapping[int, tuple[int, float]] | None = None,
) -> PlannerRun:
    """Run ``requests`` in order, ``concurrency`` at a time, or each at its time of ``times`` (seconds, ascending).

    With ``turns``, a request comes so many seconds after the answer to the one whose number names it; those that no
    other names come at once.

    The ring, the waves on rank 0's device and every planner rule are as in the LOOP.

    Raises:
        RuntimeError: the planner schedules nothing for longer than planners may, though rank 0's device has no work.
    """
    ring, cost = 2 * device.stages, device.cost
    free = [0.0] * device.stages
    lanes: dict[str, Lane] = {}
    flight: list[tuple[Span, ...]] = []
    ends: list[float] = []
    on_device: deque[float] = deque()
    arrivals = [(times[i] if times else 0.0, i) for i in range(len(times) or min(concurrency, len(requests)))]
    if turns is not None:
        later = {following for following, _ in turns.values()}
        arrivals = [(0.0, i) for i in range(len(requests)) if i not in later]
    heapq.heapify(arrivals)
    begun: dict[str, float] = {}
    latencies: list[float] = []
    now, upcoming, waves = 0.0, len(arrivals), 0
    held_since: float | None = None
    while len(latencies) < len(requests):
        while arrivals and arrivals[0][0] + device.admission <= now:
            at, i = heapq.heappop(arrivals)
            lanes[str(i)] = Lane(str(i), requests[i].cached, requests[i].tokens)
            begun[str(i)] = at
        while flight and ends[0] <= now:
            ends.pop(0)
            planner.observe(flight[0], cost.a + spans_work(flight[0], cost))
            for span in flight.pop(0):
                if span.last:
                    latencies.append(now - begun[span.request_id])
                    if turns is not None:
                        if (after := turns.get(int(span.request_id))) is not None:
                            heapq.heappush(arrivals, (now + after[1], after[0]))
                    elif upcoming < len(requests):
                        heapq.heappush(arrivals, (now, upcoming))
                        upcoming += 1
        while on_device and on_device[0] <= now:
            on_device.popleft()
        if not lanes:
            held_since = None
            planner.propose(PipelineView((), tuple(flight)))
        while lanes and len(flight) < ring and len(on_device) < WAVES_ON_DEVICE:
            open_lanes = tuple(lanes.values())[: device.max_batch]
            slack = max(0.0, free[0] - now)
            admitting = sum(at <= now for at, _ in arrivals) if concurrency or turns else 0
            held = 0.0 if held_since is None else now - held_since
            view = PipelineView(open_lanes, tuple(flight), admitting, slack=slack, held=held, now=now)
            spans = planner.propose(view)
            if not spans:
                if held > LONGEST_HOLD_SECONDS:
                    raise RuntimeError(f"{type(planner).__name__} waits although nothing will change")
                if held_since is None and slack <= LAUNCH_MARGIN_SECONDS:
                    held_since = now
                break
            held_since = None
            planner.accept(view, spans)
            seconds = cost.a + spans_work(spans, cost)
            end = now
            for stage in range(device.stages):
                end = free[stage] = max(end, free[stage]) + seconds
                if stage == 0:
                    on_device.append(end)
                end += device.hop
            flight.append(spans)
            ends.append(end)
            waves += 1
            for span in spans:
                if span.last:
                    del lanes[span.request_id]
        upcoming_events = [ends[0]] if ends else []
        # Past that moment by a microsecond: rounding must not make it seem to lie ahead still.
        if lanes and on_device:
            upcoming_events.append(on_device[0])
        if lanes and (due := free[0] - LAUNCH_MARGIN_SECONDS + 1e-6) > now:
            upcoming_events.append(due)
        if held_since is not None:
            upcoming_events.append(now + HELD_RETRY_SECONDS)
        if arrivals:
            upcoming_events.append(arrivals[0][0] + device.admission)
        if upcoming_events:
            now = max(now, min(upcoming_events))
    tokens = sum(request.tokens for request in requests)
    return PlannerRun(now, tokens / now, statistics.median(latencies), p95(latencies), waves)
