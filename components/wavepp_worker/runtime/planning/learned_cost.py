"""The cost of a chunk, learned from the waves that were executed. Pure."""

from __future__ import annotations

import numpy as np

from wavepp_worker.runtime.planning.wave_cost import WaveCost

GUESS = WaveCost(a=256.0, b=1.0, c=1 / 65536)
"""Before anything was measured, in units of ``b``: a wave costs 256 tokens extra, attention doubles a token's cost
at 65,536 tokens of context. Only ratios matter to a planner."""
MEMORY = 0.995
"""Weight of a wave, of the next one's: about the last 200 count, as those of one load look much alike."""
DOUBT = 0.0001
"""How much the guess counts beside one wave: the square of the error that waves have, of that the guess may have."""
LEAST = 0.01
"""Of the guess: no coefficient falls below, as a stage that costs nothing for tokens cannot be planned for."""


class LearnedCost:
    """Least squares of the relative error of ``a + b*n + c*sum(context)``, drawn to a scaled guess."""

    def __init__(self, guess: WaveCost = GUESS) -> None:
        self._guess = np.array([guess.a, guess.b, guess.c])
        self._squares = np.zeros((3, 3))
        self._products = np.zeros(3)
        self.cost = guess

    def observe(self, tokens: int, context: float, seconds: float) -> WaveCost:
        """Account for a wave of so many tokens that attend to ``context`` tokens in sum; returns the new cost.

        ``seconds`` is the slowest stage's time; a wave that took none teaches nothing.
        """
        if seconds <= 0:
            return self.cost
        features = np.array([1.0, tokens, context]) / seconds
        self._squares = MEMORY * self._squares + np.outer(features, features)
        self._products = MEMORY * self._products + features
        guess = self._guess
        scaled = guess * (guess @ self._products) / (guess @ self._squares @ guess)
        a, b, c = scaled * self._factors(scaled)
        self.cost = WaveCost(float(a), float(b), float(c))
        return self.cost

    def _factors(self, scaled: np.ndarray) -> np.ndarray:
        """By how much each coefficient differs from the scaled guess; ``LEAST`` where it would be less."""
        squares = self._squares * np.outer(scaled, scaled) + DOUBT * np.eye(3)
        products = self._products * scaled + DOUBT
        factors = np.full(3, LEAST)
        free = [0, 1, 2]
        while free:
            fixed = [i for i in range(3) if i not in free]
            wanted = products[free] - squares[np.ix_(free, fixed)] @ factors[fixed]
            factors[free] = np.linalg.solve(squares[np.ix_(free, free)], wanted)
            low = [i for i in free if factors[i] < LEAST]
            if not low:
                break
            factors[low] = LEAST
            free = [i for i in free if i not in low]
        return factors
