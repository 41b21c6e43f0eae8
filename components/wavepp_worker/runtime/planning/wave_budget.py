"""What is left of a wave while it is filled: tokens, or a stage's seconds and tokens. Pure."""

from __future__ import annotations

from typing import Protocol

from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost


class WaveBudget(Protocol):
    """What is left of one wave.

    Attributes:
        tokens: at most that many fit.
    """

    tokens: int

    def chunk(self, lane: Lane) -> int:
        """Tokens of the lane's next chunk that still fit; 0 if less than a block fits."""

    def fragment(self, lane: Lane, length: int) -> bool:
        """Whether the lane's next chunk, which does not end its prompt, should leave what is left to others."""

    def spend(self, start: int, length: int) -> None:
        """The wave carries ``length`` more tokens, from prompt position ``start`` on."""


class TokenBudget:
    """So many tokens (the paper's ``b``); chunks below ``smallest`` tokens are fragments."""

    def __init__(self, tokens: int, block_size: int, smallest: int = 0) -> None:
        self.tokens = tokens
        self._block_size = block_size
        self._smallest = smallest

    def chunk(self, lane: Lane) -> int:
        return whole_blocks(lane, self.tokens, self._block_size)

    def fragment(self, lane: Lane, length: int) -> bool:
        return length < self._smallest

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length


class TimeBudget:
    """So many seconds of one stage, and so many tokens.

    A chunk ends on a block boundary, unless it fills the wave to its last token. With ``passing``, a chunk
    is a fragment if its lane needs as many further waves with it as without.

    Attributes:
        seconds: what is left of them.
    """

    def __init__(
        self, cost: WaveCost, block_size: int, tokens: int, seconds: float, *, passing: bool
    ) -> None:
        self._cost = cost
        self._block_size = block_size
        self._tokens_of_a_wave = tokens
        self._passing = passing
        self.tokens = tokens
        self.seconds = seconds

    def chunk(self, lane: Lane) -> int:
        fits = self._cost.tokens_within(self.seconds, lane.next)
        if self._block_size <= self.tokens <= fits:
            return min(lane.left, self.tokens)
        return whole_blocks(lane, min(self.tokens, fits), self._block_size)

    def fragment(self, lane: Lane, length: int) -> bool:
        whole = self._tokens_of_a_wave
        return self._passing and -(-(lane.left - length) // whole) == -(-lane.left // whole)

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        self.seconds -= self._cost.work(start, length)


def whole_blocks(lane: Lane, fits: int, block_size: int) -> int:
    """Tokens of the lane's next chunk if ``fits`` tokens fit.

    All that is left of the prompt, or a chunk that ends on a block boundary of the prompt, so that every
    block it completes can be published; 0 if less than a block fits.
    """
    if lane.left <= fits:
        return lane.left
    if fits < block_size:
        return 0
    return (lane.next + fits) // block_size * block_size - lane.next
