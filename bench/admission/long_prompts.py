"""Long prompts that share most of their tokens, for ``bench.admission``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from wavepp_worker import token_ids

from bench.common.prompts import Prompts


@dataclass(frozen=True)
class LongPrompts:
    """Prompts of ``tokens`` tokens: half of what they share is common to all, half to those of one branch.

    Attributes:
        shared: part of every prompt that is in the cache.
        room: blocks of the cache beside the branches.
    """

    tokens: int
    block_size: int
    shared: float
    branches: int
    room: int

    def prefixes(self) -> list[bytes]:
        """The branches, whole blocks of packed token ids, equal in every process."""
        new = Prompts(seed=0)
        length = int(self.tokens * self.shared) // self.block_size * self.block_size
        trunk = new.tokens(length // 2 // self.block_size * self.block_size)
        rest = length - token_ids.count(trunk)
        return [trunk + new.tokens(rest) for _ in range(self.branches)]

    def prompts(self, prefixes: list[bytes], count: int, new: Prompts) -> list[bytes]:
        """``count`` prompts over the branches in turn, each with a new end."""
        branches = itertools.islice(itertools.cycle(prefixes), count)
        return [prefix + new.tokens(self.tokens - token_ids.count(prefix)) for prefix in branches]
