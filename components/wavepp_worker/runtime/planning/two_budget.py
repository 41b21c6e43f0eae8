"""The paper's setting for Kimi K3 (section 5.3): two budgets, between which one comparison chooses. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.planning.mpu_paper import budget_ladder
from wavepp_worker.runtime.planning.packing import PackingPlanner, TokenRoom
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.protocol.waves import Span


class TwoBudgetMpu(PackingPlanner):
    """The paper's Kimi K3 setting: ``M`` while the unscheduled tokens supply one pipeline fill, else ``M/2``."""

    def __init__(self, *, P: int, M: int, B: int, max_batch: int = 128, deadline: int | None = None) -> None:
        super().__init__(max_batch=max_batch, block=B, deadline=2 * P if deadline is None else deadline)
        self._P = P
        self.ladder = budget_ladder(M, max(B, M // 2 // B * B), B)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        M, half = self.ladder[0], self.ladder[-1]
        budget = M if sum(lane.left for lane in view.lanes) >= self._P * M else half
        return self._pack(view.lanes[: self._max_batch], TokenRoom(budget, self._block, half))
