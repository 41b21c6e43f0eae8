"""Prompts at random: the same seed draws the same ones in every process."""

from __future__ import annotations

import numpy as np
from wavepp_worker import token_ids

from bench.common.systems import VOCABULARY


class Prompts:
    """Draws packed token ids below ``vocabulary``, see ``wavepp_worker.token_ids``."""

    def __init__(self, seed: int, vocabulary: int = VOCABULARY) -> None:
        self._draw = np.random.default_rng(seed)
        self._vocabulary = vocabulary

    def tokens(self, count: int) -> bytes:
        """``count`` new tokens."""
        return token_ids.pack(self._draw.integers(0, self._vocabulary, count, dtype=np.uint32))
