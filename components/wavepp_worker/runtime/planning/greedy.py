"""Chunked prefill up to a fixed budget: the greedy scheduling of the paper, section 4.6. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.planning.planner import PipelineView, Planner
from wavepp_worker.runtime.protocol.waves import Span


class GreedyPlanner(Planner):
    """Fills every wave up to the most tokens it may have, first come first served, cut at any token."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        left = self._max_tokens
        spans = []
        for lane in view.lanes:
            if left == 0:
                break
            if length := min(left, lane.left):
                spans.append(lane.span(length))
                left -= length
        return tuple(spans)
