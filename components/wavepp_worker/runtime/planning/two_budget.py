"""The paper's setting for Kimi K3 (section 5.3): two budgets, between which one comparison chooses. Pure."""

from __future__ import annotations

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.packing import PackingPlanner
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.wave_budget import TokenBudget
from wavepp_worker.runtime.protocol.waves import Span


class TwoBudgetMpu(PackingPlanner):
    """Full waves while the unscheduled tokens supply one for each stage, else half ones, in whole blocks."""

    def __init__(
        self, *, stages: int, max_num_batched_tokens: int, block_size: int, max_num_seqs: int = 128
    ) -> None:
        """The larger budget is ``max_num_batched_tokens``, the paper's ``M``.

        Raises:
            ConfigError: that is less than a block, or no multiple of blocks.
        """
        # A lane may be passed over by as many waves as the ring holds.
        super().__init__(max_num_seqs=max_num_seqs, block_size=block_size, deadline=2 * stages)
        self._stages = stages
        self._full = max_num_batched_tokens
        self._half = max(block_size, max_num_batched_tokens // 2 // block_size * block_size)
        if not max_num_batched_tokens or max_num_batched_tokens % block_size:
            raise ConfigError(
                f"max_num_batched_tokens: {max_num_batched_tokens} is no multiple of block_size={block_size}, as the "
                "waves of this planner are; make it one"
            )

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        supplied = sum(lane.left for lane in view.lanes) >= self._stages * self._full
        budget = self._full if supplied else self._half
        return self._pack(view.lanes[: self._max_num_seqs], TokenBudget(budget, self._block_size, self._half))
