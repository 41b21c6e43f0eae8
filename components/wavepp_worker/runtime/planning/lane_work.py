"""How much work is left of lanes, and how much waves carry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span


def works(lanes: Sequence[Lane], cost: WaveCost) -> list[float]:
    """What is left of each lane, in tokens that cost 1 without context: seconds change while their cost is learned."""
    # ``cost.work``, written out: 128 calls are too slow to plan with.
    half = cost.c / cost.b / 2
    per_token = 1 + half
    return [(lane.end - lane.next) * (per_token + half * (lane.next + lane.end)) for lane in lanes]


def spans_work(spans: Iterable[Span], cost: WaveCost) -> float:
    """Seconds of what a wave carries, without the wave's ``a``."""
    return sum(cost.work(span.start, span.length) for span in spans)
