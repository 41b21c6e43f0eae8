"""Measured cells of bursts, trees and agents."""

from __future__ import annotations

from bench.common.kept import Kept


class BurstRow(Kept, frozen=True, kw_only=True):
    """One measured cell; times in seconds of the devices.

    Attributes:
        stages: pipeline stages.
        making: whether requests could reuse blocks that were being computed.
        clock: ``virtual`` (one process) or ``real`` (one process a rank, real compute).
        sessions: requests that were under way at once.
        requests: in all.
        tokens: of all prompts; ``computed`` of them were, and at least ``least`` of them had to be.
        seconds: until the last answer; ``bound`` is what nothing can beat, 0 where it is not known, and ``forced`` what
            nothing can that computes every block once and reads it in later waves.
        p50: completion; ``p95`` alike.
        rounds: admission rounds.
        interval: tokens between two snapshots of recurrent layers; 0 without such layers.
    """

    name: str
    stages: int
    making: bool
    clock: str
    sessions: int
    requests: int
    tokens: int
    computed: int
    least: int
    seconds: float
    p50: float
    p95: float
    waves: int
    rounds: int
    bound: float = 0.0
    forced: float = 0.0
    interval: int = 0

    @property
    def key(self) -> tuple[str, int, bool, str, int]:
        """What makes two rows the same measurement."""
        return self.name, self.stages, self.making, self.clock, self.interval

    @property
    def excess(self) -> float:
        """Computed tokens over the fewest possible."""
        return self.computed / self.least
