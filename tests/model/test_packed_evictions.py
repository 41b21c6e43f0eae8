"""Several requests in a wave while caches forget and tiers give back: the logits are those of plain forwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.block_keys import SECRET_BYTES, BlockKeyMaker, BlockKeys

from tests.model.test_packing import FAMILIES, TOLERANCE, prompt
from tests.support.cached_rank import CachedRank, Part, agree, cached_ranks

REQUESTS, AT_ONCE, LONGEST = 12, 3, 72


class Run:
    """One replica without processes: everything that can be chosen is drawn from a seed."""

    def __init__(self, seed: str, family: Path, stages: Callable, plain: Callable, directory: Path) -> None:
        self.draw = draw = random.Random(seed)
        self._plain, self._family = plain, family
        cuts = draw.sample(range(1, 6), draw.randrange(4))
        block = draw.choice((1, 3, 4, 8))
        self._block, self._wave = block, draw.randrange(8, 33)
        whole = -(-LONGEST // block)
        made = stages(family, (*sorted(cuts), 6))
        # Pools of windows are half as large, and two requests shall run at once there as well.
        more = any(cache.span for stage in made for cache in stage._caches)
        self.ranks: list[CachedRank] = cached_ranks(
            made,
            directory,
            block_size=block,
            blocks=whole + draw.randrange(*(whole, 3 * whole // 2) if more else (whole // 2, whole)),
            host_blocks=draw.choice((whole, 3 * whole)),
            state_blocks=16,
            host_state_blocks=8,
            snapshot_interval=block * draw.choice((5, 9)),
            max_num_seqs=AT_ONCE,
            max_num_batched_tokens=self._wave,
        )
        self._maker = BlockKeyMaker(bytes(SECRET_BYTES), "m", block)
        self._bases = [prompt(LONGEST, seed) for seed in range(5 if more else 3)]
        self.running: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """By name, tokens, wanted logits, and how many tokens are computed."""
        self.resumed: list[int] = []
        self.packed = 0

    def run(self) -> None:
        left = [f"r{number}" for number in range(REQUESTS)]
        waiting: torch.Tensor | None = None
        while left or self.running:
            while left and len(self.running) < AT_ONCE:
                waiting = self._tokens(len(left)) if waiting is None else waiting
                if not self._admitted(left[0], waiting):
                    assert self.running, "nobody else runs, and a request has no room"
                    break
                left.pop(0)
                waiting = None
            self._compute()
            for rank in self.ranks:
                rank.cache.check()
                if self.draw.random() < 0.2:
                    rank.forget(self.draw, 0.05)
        for rank in self.ranks:
            rank.cache.audit()
            rank.tiers.close()

    def _tokens(self, seed: int) -> torch.Tensor:
        cut = self.draw.randrange(LONGEST // 4, LONGEST - 12)
        own = prompt(self.draw.randrange(1, 12), 100 + seed)
        return torch.cat([self.draw.choice(self._bases)[:cut], own])

    def _admitted(self, name: str, tokens: torch.Tensor) -> bool:
        count = len(tokens)
        at = agree(self.ranks, name, BlockKeys(self._maker.keys(token_ids.pack(tokens.tolist()))), count)
        if at is None:
            return False
        asked = self.draw.randrange(0, count, self._block)
        for rank in self.ranks:
            rank.cache.ask(name, asked)
            rank.materialise(name, at)
        self.resumed.append(at)
        self.running[name] = tokens, self._plain(self._family, tokens), at
        return True

    def _compute(self) -> None:
        """One wave, of some of the requests that run; at times one of them is let go of."""
        room, parts = self._wave, []
        for name in self.draw.sample(sorted(self.running), self.draw.randint(1, len(self.running))):
            tokens, _, at = self.running[name]
            length = min(len(tokens) - at, self.draw.randint(1, self._wave), room)
            if length:
                parts.append(Part(name, at, length))
                room -= length
        self.packed += len(parts) > 1
        data: Any = torch.cat([self.running[name][0][at : at + length] for name, at, length in parts])
        for rank in self.ranks:
            output = rank.forward(data, parts)
            data = output.activations
        assert output.logits is not None
        for row, (name, at, length) in zip(output.logits, parts, strict=True):
            tokens, wanted, _ = self.running[name]
            assert (row - wanted[at + length - 1]).abs().max() < 4 * TOLERANCE, f"{name} at {at + length}"
            self.running[name] = tokens, wanted, at + length
            if at + length == len(tokens) or self.draw.random() < 0.03:
                del self.running[name]
                for rank in self.ranks:
                    rank.release(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_waves_are_right_whatever_is_evicted_meanwhile(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable, tmp_path: Path
) -> None:
    """Packings, chunks, endpoints, evictions, divisions, blocks, pools and tiers are drawn together."""
    runs = [Run(f"{family} {seed}", tiny_model(family), stages, plain, tmp_path) for seed in range(4)]
    for each in runs:
        each.run()
    assert sum(at > 0 for each in runs for at in each.resumed) > REQUESTS // 2
    assert sum(each.packed for each in runs) > REQUESTS
    assert any(rank.brought_up for each in runs for rank in each.ranks)
