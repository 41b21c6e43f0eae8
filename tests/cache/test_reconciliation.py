"""Ranks that hold different prefixes and snapshots agree on the largest endpoint all have (paper, section 4.4)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.support.cache_bench import BLOCK, CacheBench, attention, keys_of, recurrent


def agree_on(ranks: Sequence[CacheBench], name: str, candidate: int) -> int:
    """Commit the minimum of what the ranks reach until all reach it: the runtime's reconciliation."""
    reached = [rank.cache.commit(name, candidate) for rank in ranks]
    asked = candidate
    for _ in range(candidate // BLOCK + 1):
        lowest = min(prepared.endpoint for prepared in reached)
        if all(prepared.committed and prepared.endpoint == lowest for prepared in reached):
            return lowest
        assert lowest < asked, "reconciliation has to go down"
        asked = lowest
        reached = [rank.cache.commit(name, lowest) for rank in ranks]
    raise AssertionError("reconciliation did not end")


def test_the_papers_example_lands_on_the_snapshot_both_ranks_have() -> None:
    """Snapshots at 64K, 72K, 90K on one rank and 64K, 80K on the other; the candidate is 80K."""
    ranks = [CacheBench(attention(64), recurrent(60, interval=2)) for _ in range(2)]
    tokens = list(range(100))
    for rank, kept in zip(ranks, ((64, 72, 90), (64, 80)), strict=True):
        fill(rank, tokens, kept)
    hints = [rank.cache.hint(keys_of(tokens), 100) for rank in ranks]
    assert hints == [90, 80]
    assert [rank.lease("a", tokens, min(hints)) for rank in ranks] == [72, 80]
    assert [rank.cache.reserve("a") for rank in ranks] == [True, True]
    assert agree_on(ranks, "a", min(hints)) == 64
    for rank in ranks:
        assert rank.materialise("a").resume[1] is not None
        rank.compute("a")
        rank.release("a")
        rank.cache.audit()


@pytest.mark.parametrize("seed", range(60))
def test_reconciliation_finds_what_an_oracle_finds(seed: int) -> None:
    """The largest endpoint at which every rank has its prefix and a snapshot, by trying all endpoints."""
    chance = random.Random(seed)
    ranks, has = [], []
    tokens = list(range(40))
    for _ in range(chance.choice([2, 3, 5])):
        rank = CacheBench(attention(64), recurrent(30, interval=2))
        kept = sorted(chance.sample(range(2, 40, 2), chance.randrange(1, 14)))
        reach = chance.randrange(max(kept), 41)
        fill(rank, tokens[:reach], kept)
        ranks.append(rank)
        has.append({0, *(at for at in kept if at < 40)})
    expected = max(set.intersection(*has))
    candidate = min(rank.cache.hint(keys_of(tokens), 40) for rank in ranks)
    assert candidate >= expected
    leased = [rank.lease("a", tokens, candidate) for rank in ranks]
    assert min(leased) >= expected
    assert all(rank.cache.reserve("a") for rank in ranks)
    assert agree_on(ranks, "a", candidate) == expected
    for rank in ranks:
        rank.materialise("a")
        rank.compute("a")
        rank.release("a")
        rank.cache.audit()


def fill(rank: CacheBench, tokens: list[int], kept: Sequence[int]) -> None:
    """Compute a prompt and keep only some of its snapshots, as eviction would have it."""
    for end in (*kept, len(tokens)):
        rank.prepare("fill", [*tokens[:end], 2**32 - 1])
        rank.materialise("fill")
        rank.compute("fill", end)
        rank.release("fill")
    keys = keys_of(tokens)
    tree = rank.tree(1)
    for at in range(BLOCK, len(tokens) + 1, BLOCK):
        node = tree.nodes.get(keys[at // BLOCK - 1])
        if at not in kept and node is not None:
            tree.detach(node)
    rank.verify()
    assert {at for at in range(2, 101, 2) if at <= len(tokens) and keys[at // 2 - 1] in tree.nodes} == set(
        kept
    )
