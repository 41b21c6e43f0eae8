"""How much work is left of lanes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost


def works(lanes: Sequence[Lane], cost: WaveCost) -> list[float]:
    """What is left of each lane, in tokens that cost 1 without context: seconds change while their cost is learned."""
    # ``cost.work``, written out: 128 calls are too slow to plan with.
    half = cost.c / cost.b / 2
    per_token = 1 + half
    return [(lane.end - lane.next) * (per_token + half * (lane.next + lane.end)) for lane in lanes]
