"""Requests that follow one of several prefixes, which do not all fit the cache, with a suffix of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bench.common.prompts import Prompts
from bench.virtual.replica import Served

PREFIXES = 8
PREFIX, SUFFIX = 16_384, 512
"""Tokens of a prefix, and of what follows it, unless others are asked for."""


class SuffixTraffic:
    """Prompts (packed token ids) that depend on the arguments only.

    Args:
        prefixes: how many there are.
        unequal: the n-th prefix is asked for ``n ** unequal`` times as seldom as the first.
    """

    def __init__(
        self,
        seed: int,
        prefixes: int = PREFIXES,
        unequal: float = 0.0,
        prefix_tokens: int = PREFIX,
        suffix_tokens: int = SUFFIX,
    ) -> None:
        self._new = Prompts(seed)
        self._draw = random.Random(seed)
        self._suffix_tokens = suffix_tokens
        self.prefixes = [self._new.tokens(prefix_tokens) for _ in range(prefixes)]
        self._weights = [at**-unequal for at in range(1, prefixes + 1)] if unequal else None

    def prompts(self, count: int) -> Iterator[bytes]:
        """Each of a prefix drawn at random."""
        for _ in range(count):
            if self._weights is None:
                prefix = self._draw.choice(self.prefixes)
            else:
                (prefix,) = self._draw.choices(self.prefixes, self._weights)
            yield prefix + self._new.tokens(self._suffix_tokens)


def most_passed(served: Sequence[Served]) -> int:
    """Tokens that requests computed which came after another and were admitted before it, of the one with most.

    Args:
        served: in the order of their arrival.
    """
    turns = sorted(range(len(served)), key=lambda at: served[at].turn)
    waiting = dict.fromkeys(range(len(served)), 0)
    most = 0
    for at in turns:
        most = max(most, waiting.pop(at))
        computed = served[at].prompt_tokens - served[at].reused_tokens
        for other in waiting:
            if other >= at:
                break
            waiting[other] += computed
    return most
