"""The cost of waves, learned from those that were executed; for ``mpu``, not in the paper. Pure."""

from __future__ import annotations

import numpy as np

from wavepp_worker.runtime.planning.wave_cost import WaveCost

COST_GUESS = WaveCost(a=256.0, b=1.0, c=1 / 65536)
"""Before anything was measured, in units of ``b``: a wave costs 256 tokens extra, attention doubles a token's cost
at 65,536 tokens of context. Only ratios matter to a planner."""
DECAY_PER_WAVE = 0.995
"""Weight of a wave, as a share of the next one's: about the last 200 count, as those of one load look much alike."""
GUESS_WEIGHT = 0.0001
"""Weight of the guess, in waves: the square of the error that waves have, as a share of that the guess may have."""
MIN_COEFFICIENT = 0.01
"""Share of the guess below which no coefficient falls: a stage that costs nothing for tokens cannot be planned for."""
MIN_WAVE_SECONDS, MAX_WAVE_SECONDS = 1e-9, 1e9


def measurable(seconds: float) -> bool:
    """Whether a clock can have measured that a wave took so long."""
    return MIN_WAVE_SECONDS <= seconds <= MAX_WAVE_SECONDS


class LearnedCost:
    """Least squares of the relative error of ``a + b*n + c*sum(context)``, drawn to a scaled guess."""

    def __init__(self, guess: WaveCost = COST_GUESS) -> None:
        self._guess = np.array([guess.a, guess.b, guess.c])
        self._squares = np.zeros((3, 3))
        self._products = np.zeros(3)
        self.cost = guess

    def observe(self, tokens: int, context: float, seconds: float) -> WaveCost:
        """Account for a wave of so many tokens that attend to ``context`` tokens in sum; returns the new cost.

        ``seconds`` is the slowest stage's time; one that no clock can have measured teaches nothing.
        """
        if not measurable(seconds):
            return self.cost
        features = np.array([1.0, tokens, context]) / seconds
        self._squares = DECAY_PER_WAVE * self._squares + np.outer(features, features)
        self._products = DECAY_PER_WAVE * self._products + features
        guess = self._guess
        scaled = guess * (guess @ self._products) / (guess @ self._squares @ guess)
        a, b, c = scaled * self._factors(scaled)
        self.cost = WaveCost(float(a), float(b), float(c))
        return self.cost

    def _factors(self, scaled: np.ndarray) -> np.ndarray:
        """By how much each coefficient differs from the scaled guess; ``MIN_COEFFICIENT`` where it would be less."""
        squares = self._squares * np.outer(scaled, scaled) + GUESS_WEIGHT * np.eye(3)
        products = self._products * scaled + GUESS_WEIGHT
        factors = np.full(3, MIN_COEFFICIENT)
        free = [0, 1, 2]
        while free:
            fixed = [i for i in range(3) if i not in free]
            wanted = products[free] - squares[np.ix_(free, fixed)] @ factors[fixed]
            factors[free] = np.linalg.solve(squares[np.ix_(free, free)], wanted)
            low = [i for i in free if factors[i] < MIN_COEFFICIENT]
            if not low:
                break
            factors[low] = MIN_COEFFICIENT
            free = [i for i in free if i not in low]
        return factors
