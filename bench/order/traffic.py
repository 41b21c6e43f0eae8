"""Requests that follow one of several prefixes, which do not all fit the cache, with a suffix of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.common.prompts import Prompts
from bench.virtual.replica import Served

PREFIXES = 8
PREFIX, SUFFIX = 16_384, 512
"""Tokens of a prefix, and of what follows it, unless others are asked for."""


@dataclass(frozen=True)
class Strangers:
    """Requests that share nothing: which part of all they are, and their tokens."""

    share: float = 0.0
    tokens: int = 4096


NOBODY = Strangers()


class _Drawn:
    """Draws questions to a prefix, and strangers."""

    def __init__(self, seed: int, suffix_tokens: int, strangers: Strangers) -> None:
        self._new = Prompts(seed)
        self._draw = random.Random(seed)
        self._suffix_tokens = suffix_tokens
        self._strangers = strangers

    def _question(self, prefix: bytes) -> bytes:
        return prefix + self._new.tokens(self._suffix_tokens)

    def _stranger(self) -> bytes:
        return self._new.tokens(self._strangers.tokens)


class SuffixTraffic(_Drawn):
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
        strangers: Strangers = NOBODY,
    ) -> None:
        super().__init__(seed, suffix_tokens, strangers)
        self.prefixes = [self._new.tokens(prefix_tokens) for _ in range(prefixes)]
        self._weights = [at**-unequal for at in range(1, prefixes + 1)] if unequal else None

    def prompts(self, count: int) -> Iterator[bytes]:
        """Each of a prefix drawn at random, or a stranger's."""
        for _ in range(count):
            if self._strangers.share and self._draw.random() < self._strangers.share:
                yield self._stranger()
                continue
            if self._weights is None:
                prefix = self._draw.choice(self.prefixes)
            else:
                (prefix,) = self._draw.choices(self.prefixes, self._weights)
            yield self._question(prefix)


class MovingTraffic(_Drawn):
    """Prompts (packed token ids) of which ``burst`` ask for one prefix, then as many for the next one, and so on.

    Args:
        burst: requests for one prefix, after which it is asked for by stragglers alone.
        stragglers: which part of all requests ask for one of the ``kept`` prefixes before the last two.
    """

    def __init__(
        self,
        seed: int,
        burst: int,
        stragglers: float,
        kept: int = PREFIXES,
        prefix_tokens: int = PREFIX,
        suffix_tokens: int = SUFFIX,
        strangers: Strangers = NOBODY,
    ) -> None:
        super().__init__(seed, suffix_tokens, strangers)
        self._burst, self._stragglers, self._kept = burst, stragglers, kept
        self._prefix_tokens = prefix_tokens
        self.prefixes: list[bytes] = []
        """All that were asked for; none before ``prompts``."""

    def prompts(self, count: int) -> Iterator[bytes]:
        """``count``, in the order in which they are sent."""
        left = 0
        for _ in range(count):
            if not left:
                self.prefixes.append(self._new.tokens(self._prefix_tokens))
                left = self._burst
            drawn, earlier = self._draw.random(), self.prefixes[-2 - self._kept : -2]
            if drawn < self._strangers.share:
                yield self._stranger()
                continue
            prefix = self.prefixes[-1]
            if earlier and drawn < self._strangers.share + self._stragglers:
                prefix = self._draw.choice(earlier)
            else:
                left -= 1
            yield self._question(prefix)


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
