"""Filling one wave from the lanes, first come first served: fragments, and the progress deadline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.planning.wave_budget import WaveBudget, whole_blocks
from wavepp_worker.runtime.protocol.waves import Span


def require_whole_blocks(largest: int, smallest: int, block_size: int) -> None:
    """Check that wave budgets from ``smallest`` to ``largest`` tokens are made of whole blocks.

    Raises:
        ConfigError: they are not, or less than a block.
    """
    for name, tokens in (("max_num_batched_tokens", largest), ("min_num_batched_tokens", smallest)):
        if tokens < block_size or tokens % block_size:
            raise ConfigError(
                f"{name}: {tokens} is no multiple of block_size={block_size}, as waves of this planner are; make it "
                f"one, such as {max(1, round(tokens / block_size)) * block_size}"
            )
    if smallest > largest:
        raise ConfigError(
            f"min_num_batched_tokens: the smallest waves, {smallest} tokens, are larger than the largest, "
            f"max_num_batched_tokens={largest}; lower the one or raise the other"
        )


class PackingPlanner(Planner):
    """Packs lanes first come first served, where a lane may pass one that would only leave a fragment.

    A lane is *passed over* by a wave that carries a younger lane but not it. After ``deadline`` such waves
    it goes first, and no younger lane joins a wave that is too full for it. Fragments are the paper's (section
    4.6); the deadline is ours, so that no lane waits for ever behind others that fit better.
    """

    def __init__(self, *, max_num_seqs: int, block_size: int, deadline: int) -> None:
        """
        Args:
            max_num_seqs: lanes that share waves.
            block_size: tokens of a KV block.
            deadline: waves that may pass a lane over.
        """
        self._max_num_seqs = max_num_seqs
        self._block_size = block_size
        self._deadline = deadline
        self._passed: dict[str, int] = {}

    def accept(self, view: PipelineView, spans: Sequence[Span]) -> None:
        super().accept(view, spans)
        carried = {span.request_id for span in spans}
        lanes = view.lanes[: self._max_num_seqs]
        youngest = max((i for i, lane in enumerate(lanes) if lane.request_id in carried), default=-1)
        passed = {}
        for i, lane in enumerate(lanes):
            if lane.request_id not in carried:
                times = self._passed.get(lane.request_id, 0) + (i < youngest)
                if times:
                    passed[lane.request_id] = times
        self._passed = passed

    def _pack(self, lanes: Sequence[Lane], budget: WaveBudget) -> tuple[Span, ...]:
        """A wave from the open lanes: overdue ones, then first come first served but for fragments.

        Not empty: who goes first takes a block even where the budget, made for lanes at a lesser context, has less.
        """
        # First come first served: those that wait were put down so, while the lanes given may be in any order.
        waited = [request_id for request_id, times in self._passed.items() if times >= self._deadline]
        names = {lane.request_id: lane for lane in lanes} if waited else {}
        overdue = [names[request_id] for request_id in waited if request_id in names]
        spans: list[Span] = []
        for lane in overdue:
            if length := self._chunk(lane, budget, first=not spans):
                spans.append(lane.span(length))
                budget.spend(lane.next, length)
        if len(spans) < len(overdue):
            return tuple(spans)
        only_whole = False
        for lane in lanes:
            if lane.request_id in waited or (only_whole and lane.left > budget.tokens):
                continue
            length = self._chunk(lane, budget, first=not spans)
            if not length:
                # Not worth looking for a prompt that ends within less than a block.
                break
            if spans and length < lane.left and budget.fragment(lane, length):
                only_whole = True
                continue
            spans.append(lane.span(length))
            budget.spend(lane.next, length)
        return tuple(spans)

    def _add_riders(
        self, view: PipelineView, spans: tuple[Span, ...], budget: WaveBudget
    ) -> tuple[Span, ...]:
        """The wave, and in what is left of it those who read what it computes, as far as it does."""
        reached = {span.request_id: span.start + span.length for span in spans}
        places = self._max_num_seqs - len(view.lanes)
        riders: list[Span] = []
        for lane in view.behind if view.riding else ():
            if len(riders) >= places:
                break
            if reached.get(view.riding[lane.request_id], -1) < lane.next:
                continue
            length = budget.chunk(lane)
            if not length:
                break
            riders.append(lane.span(length))
            budget.spend(lane.next, length)
            reached[lane.request_id] = lane.next + length
        return (*spans, *riders)

    def _chunk(self, lane: Lane, budget: WaveBudget, *, first: bool) -> int:
        """Tokens of a wave's next span; 0 only if it is not its ``first``."""
        length = budget.chunk(lane)
        return whole_blocks(lane, self._block_size, self._block_size) if first and not length else length
