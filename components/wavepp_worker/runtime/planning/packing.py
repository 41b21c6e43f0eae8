"""Filling one wave from the lanes: room, block boundaries, fragments, and the progress deadline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.planner import Lane, PipelineView, Planner
from wavepp_worker.runtime.protocol.waves import Span


class Room(Protocol):
    """What is left of a wave.

    Attributes:
        tokens: at most that many fit.
    """

    tokens: int

    def chunk(self, lane: Lane) -> int:
        """Tokens of the lane's next chunk that still fit; 0 if less than a block has room."""

    def fragment(self, lane: Lane, length: int) -> bool:
        """Whether the lane's next chunk, which does not end its prompt, should leave its room to others."""

    def take(self, start: int, length: int) -> None:
        """Use the room of ``length`` tokens from position ``start`` on."""


class TokenRoom:
    """A budget of tokens; chunks below ``smallest`` tokens are fragments."""

    def __init__(self, budget: int, block: int, smallest: int = 0) -> None:
        self.tokens = budget
        self._block = block
        self._smallest = smallest

    def chunk(self, lane: Lane) -> int:
        return whole_blocks(lane, self.tokens, self._block)

    def fragment(self, lane: Lane, length: int) -> bool:
        return length < self._smallest

    def take(self, start: int, length: int) -> None:
        self.tokens -= length


def whole_blocks(lane: Lane, fits: int, block: int) -> int:
    """Tokens of the lane's next chunk if ``fits`` tokens have room.

    All that is left of the prompt, or a chunk that ends on a block boundary of the prompt, so that every
    block it completes can be published; 0 if less than a block has room.
    """
    if lane.left <= fits:
        return lane.left
    if fits < block:
        return 0
    return (lane.next + fits) // block * block - lane.next


def require_aligned(M: int, b_min: int, B: int) -> None:
    """Raise ConfigError unless wave budgets from ``b_min`` to ``M`` tokens are made of whole blocks of ``B``."""
    if not 1 <= B <= b_min <= M or M % B or b_min % B:
        raise ConfigError(
            f"wave budgets need block <= b_min <= M, both multiples of the block; got block {B}, b_min {b_min},"
            f" M {M}. Change chunk (M) or min_chunk (b_min) to multiples of block"
        )


class PackingPlanner(Planner):
    """Packs lanes first come first served, where a lane may pass one that would only leave a fragment.

    A lane is *passed over* by a wave that carries a younger lane but not it. After ``deadline`` such waves
    it goes first, and no younger lane joins a wave that has no room for it.
    """

    def __init__(self, *, max_batch: int, block: int, deadline: int) -> None:
        """``max_batch`` lanes share waves; ``block`` tokens are a KV block; ``deadline`` is D in waves."""
        self._max_batch = max_batch
        self._block = block
        self._deadline = deadline
        self._passed: dict[str, int] = {}

    def accept(self, view: PipelineView, spans: Sequence[Span]) -> None:
        super().accept(view, spans)
        carried = {span.request_id for span in spans}
        lanes = view.lanes[: self._max_batch]
        youngest = max((i for i, lane in enumerate(lanes) if lane.request_id in carried), default=-1)
        passed = {}
        for i, lane in enumerate(lanes):
            if lane.request_id not in carried:
                times = self._passed.get(lane.request_id, 0) + (i < youngest)
                if times:
                    passed[lane.request_id] = times
        self._passed = passed

    def _pack(self, lanes: Sequence[Lane], room: Room) -> tuple[Span, ...]:
        """A wave from the open lanes: overdue ones, then first come first served but for fragments."""
        waited = {request_id for request_id, times in self._passed.items() if times >= self._deadline}
        overdue = [lane for lane in lanes if lane.request_id in waited] if waited else []
        spans = []
        for lane in overdue:
            if length := room.chunk(lane):
                spans.append(lane.span(length))
                room.take(lane.next, length)
        if len(spans) < len(overdue):
            return tuple(spans)
        only_whole = False
        for lane in lanes:
            if lane.request_id in waited or (only_whole and lane.left > room.tokens):
                continue
            length = room.chunk(lane)
            if not length:
                # Not worth looking for a prompt that ends within less than a block.
                break
            if spans and length < lane.left and room.fragment(lane, length):
                only_whole = True
                continue
            spans.append(lane.span(length))
            room.take(lane.next, length)
        return tuple(spans)
