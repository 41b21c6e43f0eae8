"""What a router is told of: the blocks that every rank holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.protocol.events import CacheChanges, StoredRun


def run(*keys: int, parent: int | None = None, tokens: bytes = b"") -> StoredRun:
    return StoredRun(keys, parent, tokens)


def test_a_block_is_stored_when_the_last_rank_has_it_and_removed_when_the_first_loses_it() -> None:
    """Promise 15."""
    feed = IndexFeed(ranks=2, block_size=1)
    tokens = bytes([7, 0, 0, 0, 8, 0, 0, 0])
    assert feed.apply(CacheChanges(rank=0, stored=(run(1, 2, tokens=tokens),))) == []
    (stored,) = feed.apply(CacheChanges(rank=1, stored=(run(1, 2),)))
    assert (stored.stored, stored.parent, stored.tokens) == ((1, 2), None, tokens)
    (removed,) = feed.apply(CacheChanges(rank=1, removed=(2,)))
    assert removed.removed == (2,)
    assert feed.apply(CacheChanges(rank=0, removed=(2,))) == []
    with pytest.raises(AuditError, match="had not stored"):
        feed.apply(CacheChanges(rank=0, removed=(2,)))


def test_rank_0_says_what_a_block_is_of_whoever_has_it_last() -> None:
    """Other ranks restore blocks whose tokens and salt they do not know; rank 0 may have others."""
    tokens = bytes(range(12))
    for first in (0, 1):
        feed = IndexFeed(ranks=2, block_size=1)
        rank0 = CacheChanges(rank=0, stored=(StoredRun((1, 2, 3), None, tokens, "salt", "lora"),))
        rank1 = CacheChanges(rank=1, stored=(run(1, 2, 9), run(4, parent=2)))
        told = [
            delta for each in ((rank0, rank1) if first == 0 else (rank1, rank0)) for delta in feed.apply(each)
        ]
        (delta,) = told
        assert (delta.stored, delta.parent, delta.tokens) == ((1, 2), None, tokens[:8])
        assert (delta.salt, delta.lora) == ("salt", "lora")
        assert feed.apply(CacheChanges(rank=1, removed=(9,))) == []


@given(st.data())
def test_the_feed_equals_the_intersection_of_the_ranks(data: st.DataObject) -> None:
    """Whatever the interleaving, a router believes exactly what all ranks hold, parents first."""
    ranks = data.draw(st.integers(1, 4))
    feed = IndexFeed(ranks, block_size=1)
    depth = [0] * ranks
    believed: list[int] = []
    for _ in range(data.draw(st.integers(0, 30))):
        rank = data.draw(st.integers(0, ranks - 1))
        target = data.draw(st.integers(0, 6))
        grow = tuple(range(depth[rank] + 1, target + 1))
        shrink = tuple(range(depth[rank], target, -1))
        parent = depth[rank] or None
        stored = (
            (run(*grow, parent=parent, tokens=bytes(4 * len(grow)) if rank == 0 else b""),) if grow else ()
        )
        for delta in feed.apply(CacheChanges(rank=rank, stored=stored, removed=shrink)):
            for key in delta.removed:
                assert believed.pop() == key, "a parent was removed before its child"
            if delta.stored:
                assert delta.parent == (believed[-1] if believed else None)
                assert len(delta.tokens) == 4 * len(delta.stored)
                believed.extend(delta.stored)
        depth[rank] = target
        assert believed == list(range(1, min(depth) + 1))
        assert feed.stored() == min(depth)
