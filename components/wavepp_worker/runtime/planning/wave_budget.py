"""What is left of a wave that shall take so many seconds. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.planning.packing import whole_blocks
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost


class TimedRoom:
    """Seconds of one stage and a limit on tokens.

    A chunk ends on a block boundary, unless it fills the wave to its last token. With ``passing``, a chunk
    is a fragment if its lane needs as many further waves with it as without.
    """

    def __init__(self, cost: WaveCost, block: int, tokens: int, seconds: float, *, passing: bool) -> None:
        self._cost = cost
        self._block = block
        self._full = tokens
        self._passing = passing
        self.tokens = tokens
        self.seconds = seconds

    def chunk(self, lane: Lane) -> int:
        fits = self._cost.tokens_within(self.seconds, lane.next)
        if self._block <= self.tokens <= fits:
            return min(lane.left, self.tokens)
        return whole_blocks(lane, min(self.tokens, fits), self._block)

    def fragment(self, lane: Lane, length: int) -> bool:
        return self._passing and -(-(lane.left - length) // self._full) == -(-lane.left // self._full)

    def take(self, start: int, length: int) -> None:
        self.tokens -= length
        self.seconds -= self._cost.work(start, length)
