"""In which order waiting requests are prepared while not all of them fit. Pure.

First come, first served keeps nobody waiting for those who came later. But where the prefixes that requests share do
not all fit the cache, each then finds its own evicted by those in between, and most compute everything. Under that
pressure requests come first whose admission computes and takes least: those of one prefix run together while it is
there. A popular prefix that had to go comes back when enough requests wait for it, not for each of them anew. Nobody is
passed for ever: what those compute who pass a request is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Protocol

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.results import Standing
from wavepp_worker.runtime.admission.demand import Demand, demands
from wavepp_worker.runtime.admission.held_back import Alike, Gathering, released
from wavepp_worker.runtime.admission.popular import PopularPrefixes
from wavepp_worker.runtime.admission.waiting import Waiting

LOOKAHEAD = 128
"""Most waiting requests that are looked at: that takes 10 to 20 µs each."""
LOOK_AGAIN_SECONDS = 0.02
"""Seconds after which what the waiting requests demand is looked at again; who comes meanwhile is looked at alone."""
HELD_BACK = 1 / 8
"""Share of a prompt that is popular and missing, from which on it is held back."""
HELD_PER_RUNNING = 8
"""So many times as many requests are held back as others run, when the next popular prefix is computed again at the
latest; else when half as many others as there are stages run or could, or as soon as stages idle and those who may join
save too little (``Gathering.opens``). More wait for it then, for one computation."""
HELD_PASSED = 1 / 4
"""Who was passed by more than this share of the bound is not held back any more. Longer waits for those who may join
save little more, and are the longest there are."""
HELD_PASSERS = 8
"""Nor who was passed by so many times as many requests as ran or waited when it came: whoever was to join it has come.
It is the sooner bound where most reuse nearly all of their prompt, and so pass it by few tokens."""


class CacheView(Protocol):
    """What is looked at of rank 0's cache; see ``RankCache``."""

    def free_tokens(self) -> float: ...
    def standing(self, keys: BlockKeys, prompt_tokens: int) -> Standing: ...
    @property
    def leaves_snapshots(self) -> bool: ...


@dataclass(frozen=True)
class Surroundings:
    """What waiting requests meet.

    Attributes:
        room: tokens that could be reserved for them.
        cache: of rank 0.
        running: requests that are admitted or being prepared, and not over.
        admitted_tokens: tokens that those compute, and have computed already.
        under_way: the same, of each at most a wave's.
        writer: see ``InTheMaking.writer``.
    """

    room: float
    cache: CacheView
    running: int
    admitted_tokens: int
    under_way: int
    writer: Callable[[BlockKeys, int, int], tuple[str, int] | None]


@dataclass
class PrefixOrder:
    """Requests that compute and take least come first while not all that wait fit; else who came first.

    Attributes:
        max_passed_tokens: most tokens that those compute in all which pass a request.
        block_size: tokens per block.
        stages: of the pipeline.
        wave_tokens: most tokens of a wave.
    """

    max_passed_tokens: int
    block_size: int
    stages: int
    wave_tokens: int
    _popular: PopularPrefixes = field(default_factory=PopularPrefixes)
    _looked_at: float = -math.inf
    _alone: bool = False
    """Whether somebody came since then, who was looked at alone."""

    def arrived(self, entry: Waiting) -> None:
        """A request came."""
        self._popular.arrived(entry.keys)

    def admitted(self, entry: Waiting, endpoint: int) -> None:
        """A request was admitted that reuses ``endpoint`` tokens."""
        self._popular.reused(entry.keys, endpoint // self.block_size)
        if entry.demand is not None and entry.demand.shared:
            # What it took together with others is there for them now.
            self._looked_at = -math.inf

    def heads(self, waiting: Iterable[Waiting], now: float, around: Surroundings) -> list[Waiting] | None:
        """Who may be prepared, in order, perhaps nobody yet; None if nothing speaks against who came first.

        Args:
            waiting: first come first.
        """
        rivals = list(islice(waiting, LOOKAHEAD))
        if sum(each.prompt_tokens for each in rivals) <= around.cache.free_tokens():
            return None
        chosen = self._choose(rivals, now, around)
        if chosen is not None and self._alone and any(self._missing_popular(each) for each in chosen):
            # Who came since the others were looked at may want the same as some of them: then those may be more.
            self._looked_at = -math.inf
            chosen = self._choose(rivals, now, around)
        return chosen

    def _choose(self, rivals: Sequence[Waiting], now: float, around: Surroundings) -> list[Waiting] | None:
        looked_at = self._look(rivals, now, around)
        held_back = [
            each for each, demand in zip(rivals, looked_at, strict=True) if self._held_back(each, demand)
        ]
        if not held_back and sum(demand.takes for demand in looked_at) <= around.room:
            return None
        arranged = self._arranged(rivals, looked_at)
        if not held_back:
            return arranged
        gathering = Gathering(
            self,
            Alike.of(held_back),
            around.running,
            around.admitted_tokens,
            around.under_way,
            self.wave_tokens,
            enough_tokens=(self.stages + 1) * self.wave_tokens,
            few=max(self.stages / 2, len(held_back) / HELD_PER_RUNNING),
        )
        return released(arranged, held_back, gathering, self.max_passed_tokens)

    def _arranged(self, rivals: Sequence[Waiting], looked_at: Sequence[Demand]) -> list[Waiting]:
        arranged: list[Waiting] = []
        both = zip(rivals, looked_at, strict=True)
        for _, alike in groupby(both, key=lambda each: each[0].priority):
            those, demanded = zip(*alike, strict=True)
            arranged += arrange(those, demanded, self.max_passed_tokens)
        return arranged

    def computes(self, entry: Waiting) -> int:
        """Tokens that one computes who was looked at."""
        present = 0 if entry.demand is None else self.block_size * entry.demand.present
        return entry.prompt_tokens - present

    def missing(self, entry: Waiting) -> int:
        """Tokens of a popular prefix that are not there, of one that was looked at."""
        assert entry.demand is not None
        return self.block_size * (min(self._popular.end(entry.keys), entry.reusable) - entry.demand.present)

    def share(self, entry: Waiting) -> float:
        """See ``PopularPrefixes.share``."""
        return self._popular.share(entry.keys)

    def _missing_popular(self, entry: Waiting) -> bool:
        return entry.demand is not None and self._held_back(entry, entry.demand)

    def _overdue(self, entry: Waiting) -> bool:
        """Whether it was passed by so much that it waits for nobody's prefix any more.

        It is sooner where its own prompt is long beside the bound.
        """
        most = self.max_passed_tokens
        return (
            entry.passed_by > HELD_PASSERS * entry.company
            or entry.passed > HELD_PASSED * most
            or 2 * (entry.passed + entry.prompt_tokens) > most
        )

    def _held_back(self, entry: Waiting, demand: Demand) -> bool:
        if self._overdue(entry):
            return False
        return self.missing(entry) >= HELD_BACK * entry.prompt_tokens

    def _look(self, rivals: Sequence[Waiting], now: float, around: Surroundings) -> list[Demand]:
        if now - self._looked_at > LOOK_AGAIN_SECONDS:
            self._looked_at = now
            for each in rivals:
                each.demand = None
        new = [each for each in rivals if each.demand is None]
        together = [new] if len(new) == len(rivals) else [[each] for each in new]
        if new:
            self._alone = len(new) < len(rivals)
        for prompts in together:
            found = demands(prompts, self.block_size, around.cache.standing, around.writer)
            for each, demand in zip(prompts, found, strict=True):
                each.demand = demand
        return [each.demand for each in rivals if each.demand is not None]


def arrange(rivals: Sequence[Waiting], looked_at: Sequence[Demand], bound: int) -> list[Waiting]:
    """Requests of low cost first, as long as what passes each of them stays within ``bound``.

    Args:
        rivals: first come first, all of one priority.
        looked_at: their demands.
        bound: tokens; a prompt counts whole until it is admitted.
    """
    most = [0] * (len(rivals) + 1)
    for at in range(len(rivals) - 1, -1, -1):
        most[at] = max(most[at + 1], rivals[at].passed)

    def rank(at: int) -> tuple[float, int, int]:
        return looked_at[at].cost(rivals[at].prompt_tokens), looked_at[at].group, at

    chosen: list[Waiting] = []
    taken = [False] * len(rivals)
    oldest = passing = 0
    for at in sorted(range(len(rivals)), key=rank):
        while not taken[at]:
            following = at
            if at != oldest and most[oldest] + passing + rivals[at].prompt_tokens > bound:
                following = oldest
            elif at != oldest:
                passing += rivals[at].prompt_tokens
            taken[following] = True
            chosen.append(rivals[following])
            while oldest < len(rivals) and taken[oldest]:
                oldest += 1
    return chosen


def charge(entry: Waiting, waiting: Iterable[Waiting]) -> None:
    """A request is being prepared: it passes those that wait and come before it where nobody passes anybody.

    Args:
        waiting: in that order.
    """
    for other in waiting:
        if other.first_come >= entry.first_come:
            break
        other.passed += entry.prompt_tokens
        other.passed_by += 1
        entry.passes.append(other)


def give_back(entry: Waiting, tokens: int) -> None:
    """Of what a request was charged with that passed others, so many tokens it does not compute."""
    for other in entry.passes:
        other.passed -= tokens
    entry.passes.clear()
