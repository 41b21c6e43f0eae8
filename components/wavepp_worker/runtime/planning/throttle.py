"""gLLM's prefill throttling: spread the waiting tokens over a fixed number of waves. Pure."""

from __future__ import annotations

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.packing import PackingPlanner, TokenRoom
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.protocol.waves import Span


class ThrottlePlanner(PackingPlanner):
    """``#P = max(min(#WT/#T, #MaxP * (KVfree - KVthresh) / (1 - KVthresh)), #MinP)`` tokens a wave.

    As in gLLM, prompts are cut wherever the budget ends, but for block boundaries. gLLM keeps at most ``P``
    waves in flight; here the ring bounds them, as for the other planners.
    """

    def __init__(
        self, *, T: int, max_p: int, min_p: int, B: int, kv_threshold: float = 0.0, max_batch: int = 128
    ) -> None:
        """``T`` waves to spread over; ``max_p`` and ``min_p`` tokens; ``kv_threshold`` a share of the KV.

        Raises:
            ConfigError: the budget could fall below a block, or the threshold leaves no KV.
        """
        if T < 1 or not B <= min_p <= max_p or not 0 <= kv_threshold < 1:
            raise ConfigError(
                f"throttling needs T >= 1, block <= min_p <= max_p and 0 <= kv_threshold < 1; got T {T}, block {B},"
                f" min_p {min_p}, max_p {max_p}, kv_threshold {kv_threshold}. Change the planner's settings"
            )
        super().__init__(max_batch=max_batch, block=B, deadline=1)
        self._T, self._max_p, self._min_p, self._threshold = T, max_p, min_p, kv_threshold

    def budget(self, view: PipelineView) -> int:
        """Tokens of the next wave."""
        waiting = sum(lane.left for lane in view.lanes)
        by_memory = self._max_p * (view.kv_free - self._threshold) / (1 - self._threshold)
        return max(round(min(waiting / self._T, by_memory)), self._min_p)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        return self._pack(view.lanes[: self._max_batch], TokenRoom(self.budget(view), self._block))
