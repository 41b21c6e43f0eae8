"""What a wave costs a stage: ``a + b * tokens + c * (context they attend to, in sum)`` seconds. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavepp_worker.errors import ConfigError

MIN_TOKEN_SECONDS, MAX_SECONDS = 1e-30, 1e30
"""Far beyond any device; what is calculated from coefficients outside of these may overflow."""


@dataclass(frozen=True, slots=True)
class WaveCost:
    """Seconds on the slowest stage; where only ratios matter, any unit will do.

    Attributes:
        a: per wave.
        b: per token.
        c: per token and token of context it attends to.

    Raises:
        ConfigError: a coefficient is negative or beyond any device, or a token costs nothing.
    """

    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        within = 0 <= self.a <= MAX_SECONDS and 0 <= self.c <= MAX_SECONDS
        if not (within and MIN_TOKEN_SECONDS <= self.b <= MAX_SECONDS):
            raise ConfigError(
                f"wave_cost: a stage needs seconds a and c from 0 to {MAX_SECONDS:g} and b from {MIN_TOKEN_SECONDS:g} "
                f"to {MAX_SECONDS:g}, got {self}; change the cost model"
            )

    def work(self, start: int, length: int) -> float:
        """Seconds of ``length`` tokens from prompt position ``start`` on, without the wave's ``a``."""
        return length * (self.b + self.c * (start + (length + 1) / 2))

    def tokens_within(self, seconds: float, start: int) -> int:
        """Most tokens from ``start`` on whose work is at most ``seconds``."""
        if seconds <= 0:
            return 0
        linear = self.b + self.c * (start + 0.5)
        # The root of c/2 n^2 + linear n - seconds, in the form that keeps its digits when c is tiny.
        return int(2 * seconds / (linear + math.sqrt(linear * linear + 2 * self.c * seconds)) + 1e-9)
