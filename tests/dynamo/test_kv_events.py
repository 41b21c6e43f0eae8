from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.cache.moves import Tier
from wavepp_worker.dynamo.kv_events import MAX_BLOCKS_PER_EVENT, PendingEvents, signed
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

from tests.support.fake_router import BLOCK, FakeRouter, stored


def test_hashes_become_signed_numbers_of_the_same_bits() -> None:
    assert [signed(value) for value in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]


def test_chains_of_other_salts_or_places_are_events_of_their_own() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(1, 2))
    pending.apply(stored(3, parent=1))
    pending.apply(stored(4, parent=3, salt="x"))
    assert [event.hashes for event in pending.take()] == [(1, 2), (3,), (4,)]


def test_a_block_that_came_and_went_is_not_mentioned() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(1, 2))
    pending.apply(IndexDelta(removed=(2,)))
    assert [event.hashes for event in pending.take()] == [(1,)]
    pending.apply(IndexDelta(removed=(1,)))
    pending.apply(stored(1))
    assert pending.take() == []


def test_long_chains_are_cut() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(*range(1, 2 * MAX_BLOCKS_PER_EVENT + 2)))
    events = pending.take()
    assert [len(event.hashes) for event in events] == [MAX_BLOCKS_PER_EVENT, MAX_BLOCKS_PER_EVENT, 1]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), pace=st.floats(0.0, 1.0))
def test_however_slow_the_publisher_the_router_ends_up_right(seed: int, pace: float) -> None:
    """S64, S65: a random tree grows and shrinks, blocks change tiers, readers come anew, at random moments."""
    draw = random.Random(seed)
    pending, router = PendingEvents(BLOCK), FakeRouter()
    tree: dict[int, int | None] = {}
    tiers: dict[int, Tier] = {}
    for _ in range(80):
        leaves = [node for node in tree if node not in tree.values()]
        if leaves and draw.random() < 0.45:
            leaf = draw.choice(leaves)
            del tree[leaf], tiers[leaf]
            pending.apply(IndexDelta(removed=(leaf,)))
        elif tree and draw.random() < 0.5:
            moved = draw.choice([*tree])
            tiers[moved] = draw.choice([*Tier])
            pending.apply(IndexDelta(moved=(moved,), tier=tiers[moved]))
        else:
            parent = draw.choice([None, *tree])
            # Few names, so that blocks come back after they were removed.
            child = (parent or 0) * 4 + draw.randrange(1, 4)
            if child not in tree and child < 2**64:
                tree[child], tiers[child] = parent, Tier.DEVICE
                pending.apply(stored(child, parent=parent))
        assert len(pending) <= 2 * (len(tree) + len(router.blocks)) + 1
        if draw.random() < 0.03:
            pending.begin_anew()
        if draw.random() < 0.05:
            pending.tell_again()
        if draw.random() < pace:
            router.take(pending.take())
    router.take(pending.take())
    assert router.refused == []
    assert router.blocks == {node: {tier} for node, tier in tiers.items()}
