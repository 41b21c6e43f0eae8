"""A virtual pipeline for planners: exact stage times, no host work, no cache.

``P`` stages each take ``a + b*n + c*sum(context)`` seconds for a wave; ``R = 2P`` waves are in flight; ``c``
clients send their next request when the previous one is done. Nothing here measures admission, transports or
the cache: it compares what planners do with the same requests.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker.runtime.chunk_cost import ChunkCost
from wavepp_worker.runtime.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.protocol import Span


@dataclass(frozen=True)
class Device:
    """A pipeline of ``stages`` equal stages.

    Attributes:
        cost: seconds of a wave on one stage.
        hop: seconds from one stage to the next.
        admission: seconds from a request's arrival to its admission.
        max_batch: lanes that share waves.
    """

    stages: int
    cost: ChunkCost
    hop: float = 0.002
    admission: float = 0.005
    max_batch: int = 128


@dataclass(frozen=True)
class Shape:
    """A request: ``tokens`` in its prompt, of which ``cached`` are reused."""

    tokens: int
    cached: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a run measured: seconds, prompt tokens/s (cached ones included), waves launched."""

    seconds: float
    throughput: float
    p50: float
    p95: float
    waves: int


def simulate(device: Device, planner: Planner, requests: Sequence[Shape], concurrency: int) -> Outcome:
    """Run ``requests`` in order, ``concurrency`` at a time; the ring and every planner rule are as in the LOOP.

    Raises:
        RuntimeError: the planner schedules nothing although nothing is in flight that could change its mind.
    """
    ring, cost = 2 * device.stages, device.cost
    free = [0.0] * device.stages
    lanes: dict[str, Lane] = {}
    flight: list[tuple[Span, ...]] = []
    ends: list[float] = []
    arrivals = [(0.0, i) for i in range(min(concurrency, len(requests)))]
    heapq.heapify(arrivals)
    begun: dict[str, float] = {}
    latencies: list[float] = []
    now, upcoming, waves = 0.0, len(arrivals), 0
    while len(latencies) < len(requests):
        while arrivals and arrivals[0][0] + device.admission <= now:
            at, i = heapq.heappop(arrivals)
            lanes[str(i)] = Lane(str(i), requests[i].cached, requests[i].tokens)
            begun[str(i)] = at
        while flight and ends[0] <= now:
            ends.pop(0)
            for span in flight.pop(0):
                if span.last:
                    latencies.append(now - begun[span.request_id])
                    if upcoming < len(requests):
                        heapq.heappush(arrivals, (now, upcoming))
                        upcoming += 1
        while lanes and len(flight) < ring:
            open_lanes = tuple(lanes.values())[: device.max_batch]
            view = PipelineView(open_lanes, tuple(flight), len(arrivals))
            spans = planner.propose(view)
            if not spans:
                if not flight:
                    raise RuntimeError(f"{type(planner).__name__} waits although the pipeline is idle")
                break
            planner.accept(view, spans)
            seconds = cost.a + sum(cost.work(span.start, span.length) for span in spans)
            end = now
            for stage in range(device.stages):
                end = free[stage] = max(end, free[stage]) + seconds
                end += device.hop
            flight.append(spans)
            ends.append(end)
            waves += 1
            for span in spans:
                if span.last:
                    del lanes[span.request_id]
        upcoming_events = [ends[0]] if ends else []
        if arrivals:
            upcoming_events.append(arrivals[0][0] + device.admission)
        if upcoming_events:
            now = max(now, min(upcoming_events))
    latencies.sort()
    tokens = sum(request.tokens for request in requests)
    p95 = latencies[min(len(latencies) - 1, int(0.95 * len(latencies)))]
    return Outcome(now, tokens / now, statistics.median(latencies), p95, waves)


def alone(device: Device, shape: Shape) -> float:
    """Seconds of one request on an idle pipeline, cut into the best number of equal-time chunks."""
    work = device.cost.work(shape.cached, shape.tokens - shape.cached)
    through = device.stages - 1
    # The waves of a request take k turns at the first stage, then the last one passes the others.
    fastest = min((k + through) * (device.cost.a + work / k) for k in range(1, 513))
    return fastest + through * device.hop


def bound(device: Device, requests: Sequence[Shape], concurrency: int) -> float:
    """Tokens/s that no planner can exceed: stages never idle and waves are free, or ``concurrency`` alone."""
    work = sum(device.cost.work(r.cached, r.tokens - r.cached) for r in requests)
    turns = {shape: alone(device, shape) for shape in set(requests)}
    waiting = sum(turns[r] for r in requests) / concurrency
    return sum(r.tokens for r in requests) / max(work, waiting)


def mixed(count: int, warm: Shape, cold: Shape, seed: int = 0) -> list[Shape]:
    """Three warm requests to one cold, shuffled."""
    shapes = [cold if i % 4 == 3 else warm for i in range(count)]
    random.Random(seed).shuffle(shapes)
    return shapes
