"""A request that waits for its admission, as rank 0 knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.demand import Demand


@dataclass(eq=False)
class Waiting:
    """A request that holds nothing.

    Attributes:
        arrived: seconds on the caller's clock.
        prompt_tokens: length of the prompt.
        number: of its arrival.
        priority: those of a higher one are served first.
        keys: of the full blocks of the prompt.
        reusable: most of them that the request could reuse.
        company: requests that ran or waited when it came.
        shared: tokens in common with one that waited already when it came.
        candidate: endpoint (tokens) that all ranks believe in, None before the first look-up.
        hinted: when that was.
        ended_before: writers that had ended when that was asked for.
        discovered: when it was so first.
        selected: when it was first prepared.
        attempts: how often it was prepared.
        failed: some rank had no room for it.
        demand: what its admission was last seen to take, None if that was never looked at.
        passed: tokens that requests compute which came later and were prepared before it.
        passed_by: how many those are, each as often as it was prepared.
        passes: the requests that this one, which is being prepared, passed.
    """

    arrived: float
    prompt_tokens: int
    number: int
    keys: BlockKeys
    reusable: int
    priority: int = 0
    company: int = 0
    shared: int = 0
    candidate: int | None = None
    hinted: float = -math.inf
    ended_before: int = 0
    discovered: float | None = None
    selected: float | None = None
    attempts: int = 0
    failed: bool = False
    demand: Demand | None = None
    passed: int = 0
    passed_by: int = 0
    passes: list[Waiting] = field(default_factory=list)

    @property
    def first_come(self) -> tuple[int, int]:
        """Its place where nobody passes anybody."""
        return -self.priority, self.number
