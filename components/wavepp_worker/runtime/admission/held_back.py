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
        enough_tokens: keep every stage busy.
        few: so many as run at most while the first group is opened, however many would join it.
    """

    prospects: Prospects
    alike: Alike
    running: int
    tokens: int
    enough_tokens: int
    few: float

    def runs(self, entry: Waiting) -> None:
        """It will."""
        self.running += 1
        self.tokens += self.prospects.computes(entry)

    @property
    def idles(self) -> bool:
        """Whether some stage will have nothing to do."""
        return self.tokens < self.enough_tokens

    def opens(self, entry: Waiting, *, first: bool) -> bool:
        """Whether to compute the prefix of one who is held back now, after those that run."""
        if first and self.running <= self.few:
            return True
        if not self.idles:
            return False
        joining = self.running * self.alike.likely(self.prospects.share(entry))
        return joining * self.prospects.missing(entry) <= WORTH_IDLING * self.enough_tokens


def released(
    arranged: Sequence[Waiting],
    held_back: Sequence[Waiting],
    overdue: Sequence[Waiting],
    gathering: Gathering,
) -> list[Waiting]:
    """Who may be prepared, in order: all before the first that waits for others.

    After that one, who is not held back goes as long as stages idle, and of ``overdue`` who passes none left behind.

    Args:
        held_back: those that wait for others unless their prefix is computed now.
        overdue: were passed by too much to wait behind others.
    """
    held, late = {id(each) for each in held_back}, {id(each) for each in overdue}
    opened: dict[int, bool] = {}
    chosen: list[Waiting] = []
    first_left: tuple[int, int] | None = None
    for each in arranged:
        leads = first_left is None
        if id(each) in held and each.demand is not None:
            group = each.demand.group
            if group not in opened:
                opened[group] = leads and gathering.opens(each, first=not opened)
            goes = opened[group]
        else:
            goes = leads or gathering.idles
        if goes or (id(each) in late and first_left is not None and each.first_come < first_left):
            chosen.append(each)
            gathering.runs(each)
        else:
            first_left = each.first_come if first_left is None else min(first_left, each.first_come)
    return chosen
