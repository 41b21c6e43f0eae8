"""Chunked prefill up to a fixed budget: the greedy scheduling of the paper, section 4.6. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.planning.planner import PipelineView, Planner
from wavepp_worker.runtime.protocol.waves import Span


class GreedyPlanner(Planner):
    """Fills every wave up to a fixed budget of tokens, first come first served (chunked prefill)."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        left = self._budget
        spans = []
        for lane in view.lanes:
            if left == 0:
                break
            if length := min(left, lane.left):
                spans.append(lane.span(length))
                left -= length
        return tuple(spans)
