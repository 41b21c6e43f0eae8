"""What the planners' tests share: lanes by their lengths, spans as plain numbers, one planned and accepted wave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavepp_worker.runtime.planning.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.protocol.waves import Span

BLOCK_SIZE = 16
"""Tokens of a KV block in the examples."""


def lanes(*left: int) -> tuple[Lane, ...]:
    """Requests ``r0``, ``r1``, … of so many tokens, of which none is scheduled."""
    return tuple(Lane(f"r{i}", 0, tokens) for i, tokens in enumerate(left))


def shape(spans: Sequence[Span]) -> list[tuple[str, int, int]]:
    """Request, first token and length of each span."""
    return [(span.request_id, span.start, span.length) for span in spans]


def plan(
    planner: Planner, waiting: Iterable[Lane], in_flight: Sequence[tuple[Span, ...]] = ()
) -> tuple[Span, ...]:
    """Propose a wave and accept all of it."""
    view = PipelineView(tuple(waiting), in_flight)
    spans = planner.propose(view)
    if spans:
        planner.accept(view, spans)
    return spans
