"""gLLM's prefill throttling (the paper's section 4.6 builds on it): waiting tokens spread over some waves. Pure."""

from __future__ import annotations

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.packing import PackingPlanner
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.wave_budget import TokenBudget
from wavepp_worker.runtime.protocol.waves import Span


class ThrottlePlanner(PackingPlanner):
    """``#P = max(min(#WT / #T, #MaxP), #MinP)`` tokens a wave, in gLLM's symbols.

    ``#WT`` tokens wait, ``#T`` is ``waves``, ``#MaxP`` and ``#MinP`` are the most and fewest tokens of a wave.
    gLLM also scales ``#MaxP`` with the KV memory that is free. That term is left out: here admission reserves a
    request's memory before the request has a lane. As in gLLM, prompts are cut wherever the budget ends, but for
    block boundaries. gLLM keeps at most ``P`` waves in flight; here the ring bounds them, as for the other planners.
    """

    def __init__(
        self,
        *,
        waves: int,
        max_num_batched_tokens: int,
        min_num_batched_tokens: int,
        block_size: int,
        max_num_seqs: int = 128,
    ) -> None:
        """``waves`` to spread the waiting tokens over.

        Raises:
            ConfigError: there are none, or the budget could fall below a block.
        """
        if waves < 1 or not block_size <= min_num_batched_tokens <= max_num_batched_tokens:
            raise ConfigError(
                "throttling needs waves >= 1 and block_size <= min_num_batched_tokens <= max_num_batched_tokens;"
                f" got waves {waves}, block_size {block_size}, min_num_batched_tokens {min_num_batched_tokens},"
                f" max_num_batched_tokens {max_num_batched_tokens}. Change the planner's settings"
            )
        super().__init__(max_num_seqs=max_num_seqs, block_size=block_size, deadline=1)
        self._waves = waves
        self._max_tokens, self._min_tokens = max_num_batched_tokens, min_num_batched_tokens

    def budget(self, view: PipelineView) -> int:
        """Tokens of the next wave."""
        waiting = sum(lane.left for lane in view.lanes)
        return max(round(min(waiting / self._waves, self._max_tokens)), self._min_tokens)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        return self._pack(view.lanes[: self._max_num_seqs], TokenBudget(self.budget(view), self._block_size))
