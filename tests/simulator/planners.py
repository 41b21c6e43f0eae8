"""Planners of waves for simulated ranks."""

from __future__ import annotations

import random

from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import PipelineView, Planner
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span


class RidingPlanner(GreedyPlanner):
    """Fills what is left of a wave with those who read what it computes, cut at any token."""

    def __init__(self, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        super().__init__(max_num_batched_tokens)
        self._most = max_num_seqs

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        spans = [*super().propose(view)]
        reached = {span.request_id: span.start + span.length for span in spans}
        left = self._max_tokens - sum(span.length for span in spans)
        for lane in view.behind if view.riding and spans else ():
            if (
                left
                and len(spans) < self._most
                and reached.get(view.riding[lane.request_id], -1) >= lane.next
            ):
                spans.append(lane.span(min(left, lane.left)))
                left -= spans[-1].length
                reached[lane.request_id] = lane.next + spans[-1].length
        return tuple(spans)


def draw_planner(draw: random.Random, ranks: int, chunk: int, block: int, lanes: int) -> Planner:
    """Most fill their waves; some wait for more work while there is some on the device."""
    kind = draw.choice(("greedy", "greedy", "greedy", "mpu", "paper"))
    most = max(block, chunk // block * block)
    if kind == "mpu":
        return Mpu(
            stages=ranks,
            max_num_batched_tokens=most,
            min_num_batched_tokens=block,
            block_size=block,
            cost=WaveCost(a=0.001, b=0.0005, c=0.00001),
            max_num_seqs=lanes,
        )
    if kind == "paper":
        return PaperMpu(P=ranks, M=most, b_min=block, B=block, max_num_seqs=lanes)
    return GreedyPlanner(chunk)
