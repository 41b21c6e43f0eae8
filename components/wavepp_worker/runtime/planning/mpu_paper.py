"""Maximum pipeline utilisation (MPU) as in the paper, section 4.6, with its symbols. Pure.

``M`` most tokens in a wave, ``b_min`` fewest a budget shrinks to, ``B`` tokens per KV block, ``P`` stages,
``R = 2P`` waves in the ring, ``F`` pipeline fills to keep ready, ``S = R + (F-1)P`` waves to supply, ``W``
tokens admitted and not executed, ``N_{>b/2}`` pieces that cannot share a wave of ``b`` tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from wavepp_worker.runtime.planning.packing import PackingPlanner, require_whole_blocks
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.wave_budget import TokenBudget
from wavepp_worker.runtime.protocol.waves import Span

MAX_NEWLY_SPLIT_SHARE = 0.125
"""Share of ``W`` (tokens of tokens) that a thinner budget may newly split once a larger one supplies ``R`` waves."""
MIN_SUPPLY_SHARE = 0.875
"""Share of the ``S`` waves below which the supply has to fall before a budget shrinks: the paper's hysteresis check."""
BURST_SUPPLY_RATIO = 2
"""Work for this many times ``S`` waves of a larger budget is a burst, which raises the budget at once."""


def budget_ladder(M: int, b_min: int, B: int) -> tuple[int, ...]:
    """``b_0 = M``, then halves aligned down to blocks, down to ``b_min``.

    Raises:
        ConfigError: the numbers are not block-aligned with ``B <= b_min <= M``.
    """
    require_whole_blocks(M, b_min, B)
    ladder = [M]
    while ladder[-1] > b_min:
        ladder.append(max(b_min, ladder[-1] // 2 // B * B))
    return tuple(ladder)


class Supply:
    """The work a budget is chosen for: remaining suffixes, and the chunks in the ring."""

    def __init__(self, view: PipelineView) -> None:
        self.remaining = sorted(lane.left for lane in view.lanes)
        self._pieces = sorted(self.remaining + [span.length for wave in view.in_flight for span in wave])
        self.W = sum(self._pieces)

    def waves(self, b: int) -> float:
        """``n(b) = max(W/b, N_{>b/2})``."""
        return max(self.W / b, len(self._pieces) - bisect_right(self._pieces, b / 2))

    def newly_split(self, b: int, larger: int) -> int:
        """Tokens of remaining suffixes that fit a wave of ``larger`` tokens but not one of ``b``."""
        return sum(self.remaining[bisect_right(self.remaining, b) : bisect_right(self.remaining, larger)])


class PaperMpu(PackingPlanner):
    """The paper's planner (``mpu-paper``)."""

    def __init__(
        self,
        *,
        P: int,
        M: int,
        b_min: int,
        B: int,
        F: int = 2,
        max_num_seqs: int = 128,
    ) -> None:
        """The paper's symbols, see above; ``max_num_seqs`` lanes share waves.

        Raises:
            ConfigError: the numbers are not block-aligned with ``B <= b_min <= M``.
        """
        self.R = 2 * P
        super().__init__(max_num_seqs=max_num_seqs, block_size=B, deadline=self.R)
        self.S = self.R + (F - 1) * P
        self.b_min = b_min
        self.ladder = budget_ladder(M, b_min, B)
        self.budget = b_min
        """The budget of the latest decision (tokens)."""
        self._rising = self._falling = 0
        self._waited = False

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        lanes = view.lanes[: self._max_num_seqs]
        if not lanes:
            return ()
        self._move_budget(Supply(view))
        spans = self._pack(
            lanes, TokenBudget(self.budget, self._block_size, max(self.b_min, self.budget // 2))
        )
        if self._worth_waiting(view, spans):
            return ()
        return spans

    def target(self, supply: Supply) -> int:
        """The largest budget that supplies ``S`` waves, short of splitting what a larger one leaves whole."""
        supplying = self.ladder[-1]
        for b in self.ladder:
            if supply.waves(b) >= self.S:
                supplying = b
                break
        whole = next((b for b in self.ladder if supply.waves(b) >= self.R), supplying)
        chosen = max(whole, supplying)
        for b in self.ladder:
            if supplying <= b < whole and supply.newly_split(b, whole) <= MAX_NEWLY_SPLIT_SHARE * supply.W:
                chosen = b
        return chosen

    def _move_budget(self, supply: Supply) -> None:
        """Move the budget towards the target once the change is large or has persisted."""
        target, ladder = self.target(supply), self.ladder
        rungs_up = ladder.index(self.budget) - ladder.index(target)
        self._rising = self._rising + 1 if rungs_up > 0 else 0
        self._falling = self._falling + 1 if rungs_up < 0 else 0
        burst = rungs_up > 1 or (rungs_up == 1 and supply.waves(target) >= BURST_SUPPLY_RATIO * self.S)
        short = supply.waves(self.budget) < MIN_SUPPLY_SHARE * self.S
        if burst or self._rising >= self.R // 2 or (self._falling >= self.R and short):
            self.budget = target
            self._rising = self._falling = 0

    def _worth_waiting(self, view: PipelineView, spans: Sequence[Span]) -> bool:
        """Whether a lone wave below half capacity waits one iteration for a request in admission."""
        lone = len(spans) == 1 and spans[0].length < self.budget / 2
        self._waited = bool(lone and view.in_flight and view.admitting and not self._waited)
        return self._waited
