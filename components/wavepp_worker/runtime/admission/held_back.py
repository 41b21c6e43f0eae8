"""Who waits for others who want the same popular prefix, which is missing: one computation serves them all. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wavepp_worker.runtime.admission.waiting import Waiting

WORTH_IDLING = 1 / 16
"""What those save who are expected to join has to be more than this share of what keeps all stages busy, for stages to
idle meanwhile."""
KNOWN_PAIRS = 16
"""So many pairs of those held back tell as much of how many want the same as the latest arrivals do."""


@dataclass(frozen=True)
class Alike:
    """Pairs of those that are held back, and how many of these want the same prefix."""

    same: int
    pairs: int

    @classmethod
    def of(cls, held_back: Sequence[Waiting]) -> Alike:
        sizes = Counter(each.demand.group for each in held_back if each.demand is not None).values()
        return cls(sum(math.comb(size, 2) for size in sizes), math.comb(len(held_back), 2))

    def likely(self, known: float) -> float:
        """How likely the next one who is held back wants the same prefix as one of these.

        Args:
            known: the same, as far as the latest arrivals tell (``PopularPrefixes.share``).
        """
        return (self.same + KNOWN_PAIRS * known) / (self.pairs + KNOWN_PAIRS)


class Prospects(Protocol):
    """What is known of a waiting request; see ``PrefixOrder``."""

    def computes(self, entry: Waiting) -> int:
        """Tokens that it computes."""

    def missing(self, entry: Waiting) -> int:
        """Tokens of its popular prefix that are not there."""

    def share(self, entry: Waiting) -> float:
        """How likely the next one who comes wants its popular prefix."""


@dataclass
class Gathering:
    """Whether one who is held back waits for more to join, while requests run.

    Attributes:
        running: requests that run, or will.
        tokens: that they compute, and have computed already.
        under_way: the same, of each at most a wave's.
        wave_tokens: most tokens of a wave.
        enough_tokens: keep every stage busy.
        few: so many as run at most while the first group is opened, however many would join it.
    """

    prospects: Prospects
    alike: Alike
    running: int
    tokens: int
    under_way: int
    wave_tokens: int
    enough_tokens: int
    few: float

    def runs(self, entry: Waiting) -> None:
        """It will."""
        computes = self.prospects.computes(entry)
        self.running += 1
        self.tokens += computes
        self.under_way += min(self.wave_tokens, computes)

    @property
    def enough(self) -> bool:
        """Whether every stage is busy with those that run: what more take, prefixes that are wanted would lose."""
        return self.under_way >= self.enough_tokens

    def opens(self, entry: Waiting, *, first: bool) -> bool:
        """Whether to compute the prefix of one who is held back now, after those that run."""
        if first and self.running <= self.few:
            return True
        if self.tokens >= self.enough_tokens:
            return False
        joining = self.running * self.alike.likely(self.prospects.share(entry))
        return joining * self.prospects.missing(entry) <= WORTH_IDLING * self.enough_tokens


def released(
    arranged: Sequence[Waiting], held_back: Sequence[Waiting], gathering: Gathering, bound: int
) -> list[Waiting]:
    """Who may be prepared, in order: who is not held back, and of those who are the leading groups that are opened.

    No more than keep every stage busy. Once somebody who could go may pass nobody any more, nobody of a lower priority
    is chosen, though one that is shorter still might.

    Args:
        arranged: those of the highest priority first.
        held_back: those that wait for others unless their prefix is computed now.
        bound: most tokens that those compute in all which pass one, itself or by being chosen here.
    """
    held = {id(each) for each in held_back}
    opened: dict[int, bool] = {}
    chosen: list[Waiting] = []
    left = Left()
    priority_floor = -math.inf
    for each in arranged:
        if gathering.enough or each.priority < priority_floor:
            break
        goes = True
        if id(each) in held and each.demand is not None:
            group = each.demand.group
            if group not in opened:
                opened[group] = all(opened.values()) and gathering.opens(each, first=not opened)
            goes = opened[group]
        if goes and left.let_pass(each, bound):
            chosen.append(each)
            gathering.runs(each)
        else:
            left.add(each, chosen)
            if goes:
                priority_floor = each.priority
    return chosen


@dataclass
class Left:
    """Those that stay behind while others are chosen.

    Attributes:
        first: the place of the first of them where nobody passes anybody.
        passed: most tokens that one of them is passed by, but for ``passing``.
        passing: tokens of those that were chosen after somebody stayed behind.
    """

    first: tuple[int, int] | None = None
    passed: int = 0
    passing: int = 0

    def add(self, entry: Waiting, chosen: Sequence[Waiting]) -> None:
        """It stays behind, these were chosen."""
        by = sum(each.prompt_tokens for each in chosen if each.first_come > entry.first_come)
        self.passed = max(self.passed, entry.passed + by - self.passing)
        self.first = entry.first_come if self.first is None else min(self.first, entry.first_come)

    def let_pass(self, entry: Waiting, bound: int) -> bool:
        """Whether it passes nobody, or nobody by more than ``bound`` tokens; then it does."""
        if self.first is None or entry.first_come < self.first:
            return True
        if self.passed + self.passing + entry.prompt_tokens > bound:
            return False
        self.passing += entry.prompt_tokens
        return True
