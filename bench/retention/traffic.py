"""Requests of the retention sweep: half carry one of many prefixes, the other half drives prefixes out."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.common.prompts import Prompts

PREFIXES = 24
PREFIX, SUFFIX, COLD = 117_952, 13_120, 65_536
"""Tokens of a prefix, of what follows it, and of a cold prompt."""


class PrefixTraffic:
    """Prompts (packed token ids) and arrival times that depend on the seed and the rate only."""

    def __init__(self, seed: int) -> None:
        self._new = Prompts(seed)
        self._draw = random.Random(seed)
        self.prefixes = [self._new.tokens(PREFIX) for _ in range(PREFIXES)]

    def arrivals(self, rate: float, count: int) -> Iterator[tuple[float, bytes]]:
        """``count`` prompts with the seconds from the start at which they arrive, ``rate`` a second (Poisson)."""
        at = 0.0
        for index in range(count):
            at += self._draw.expovariate(rate)
            if index % 2:
                yield at, self._new.tokens(COLD)
            else:
                yield at, self._draw.choice(self.prefixes) + self._new.tokens(SUFFIX)
