"""Who waits for others who want the same popular prefix, which is missing: one computation serves them all. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavepp_worker.runtime.admission.waiting import Waiting

WORTH_IDLING = 1 / 16
"""What those save who are expected to join has to be more than this share of what keeps all stages busy, for stages to
idle meanwhile."""
KNOWN_PAIRS = 16
"""So many pairs of those held back tell as much of how many want the same as the latest admissions do."""


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
            known: the same, as far as the latest admissions tell (``PopularPrefixes.share``).
        """
        return (self.same + KNOWN_PAIRS * known) / (self.pairs + KNOWN_PAIRS)


def released(
    arranged: Sequence[Waiting],
    held_back: Sequence[Waiting],
    overdue: Sequence[Waiting],
    opens: Callable[[Waiting, Sequence[Waiting]], bool],
) -> list[Waiting]:
    """The leading requests up to the first that has to wait for others, and of ``overdue`` who passes none left behind.

    Args:
        held_back: those that wait for others unless their prefix is computed now.
        overdue: were passed by too much to wait behind others.
        opens: whether to compute the prefix of one of ``held_back`` now, after these requests.
    """
    held, late = {id(each) for each in held_back}, {id(each) for each in overdue}
    asked: set[int] = set()
    chosen: list[Waiting] = []
    first_left = math.inf
    for each in arranged:
        leads = first_left == math.inf
        if leads and id(each) in held and each.demand is not None and each.demand.group not in asked:
            leads = opens(each, chosen)
            asked.add(each.demand.group)
        if leads or (id(each) in late and each.number < first_left):
            chosen.append(each)
        else:
            first_left = min(first_left, each.number)
    return chosen
