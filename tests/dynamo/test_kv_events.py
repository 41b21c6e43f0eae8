from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from wavepp_worker.cache.moves import Tier
from wavepp_worker.dynamo.kv_events import (
    AGAIN_BLOCKS,
    CLEAR_ABOVE_BLOCKS,
    MAX_BLOCKS_PER_EVENT,
    ClearedEvent,
    PendingEvents,
    RemovedEvent,
    StoredEvent,
    signed,
)
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

from tests.support.fake_router import BLOCK, FakeRouter, stored


def on_disk(delta: IndexDelta) -> IndexDelta:
    return structs.replace(delta, tier=Tier.DISK)


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


def test_s64_what_leaves_a_lower_tier_is_removed_at_a_router_that_knows_a_part_of_it() -> None:
    """Dynamo's router ends a removal at the first block it does not know."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(on_disk(stored(1, 2, 3)))
    router.take(pending.take())
    router.forget_lower_tiers()
    pending.apply(on_disk(stored(4, 5, parent=3)))
    router.take(pending.take())
    assert set(router.blocks) == {4, 5}
    pending.apply(IndexDelta(removed=(3, 5, 4)))
    router.take(pending.take())
    assert router.blocks == {}
    assert router.unknown == []
    pending.tell_again()
    router.take(pending.take())
    assert router.blocks == {1: {Tier.DISK}, 2: {Tier.DISK}}


def test_what_comes_to_the_device_before_what_precedes_it_waits_for_that() -> None:
    """A router would refuse it, and never hear of it again."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(on_disk(stored(1, 2)))
    pending.apply(stored(3, 4, parent=2))
    router.take(pending.take())
    pending.apply(IndexDelta(moved=(2,), tier=Tier.DEVICE))
    router.take(pending.take())
    assert router.blocks == {1: {Tier.DISK}, 2: {Tier.DISK}}
    pending.apply(IndexDelta(removed=(4,)))
    pending.apply(IndexDelta(moved=(1,), tier=Tier.DEVICE))
    router.take(pending.take())
    assert router.refused == []
    assert router.blocks == {block: {Tier.DEVICE} for block in (1, 2, 3)}
    assert not pending


def test_s65_what_left_the_device_and_is_back_before_what_precedes_it_is_told_anew() -> None:
    """A router forgets it with that; a rank may tell of the two in this order, and something be published between."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(stored(1, 2, 3, 4))
    router.take(pending.take())
    pending.apply(IndexDelta(removed=(4, 3)))
    pending.apply(IndexDelta(moved=(2,), tier=Tier.HOST))
    pending.apply(stored(3, 4, parent=2))
    router.take(pending.take())
    assert router.blocks == {1: {Tier.DEVICE}, 2: {Tier.HOST}}
    pending.apply(IndexDelta(moved=(2,), tier=Tier.DEVICE))
    router.take(pending.take())
    assert router.refused == router.unknown == []
    assert router.blocks == {block: {Tier.DEVICE} for block in (1, 2, 3, 4)}
    assert not pending


def test_where_most_is_gone_all_is_cleared_and_what_is_left_told() -> None:
    """Tens of thousands of blocks that leave at once would hold up for half a minute what is stored after them."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(stored(1, 2))
    pending.apply(on_disk(stored(3, parent=2)))
    gone = range(10, 10 + 2 * CLEAR_ABOVE_BLOCKS)
    for block in gone:
        pending.apply(on_disk(stored(block)))
    router.take(pending.take())
    pending.apply(IndexDelta(removed=tuple(gone)))
    pending.apply(stored(9000))
    events = pending.take()
    assert len(events) == 4, "cleared, and three chains"
    router.take(events)
    assert router.blocks == {1: {Tier.DEVICE}, 2: {Tier.DEVICE}, 3: {Tier.DISK}, 9000: {Tier.DEVICE}}
    assert not pending
    pending.apply(IndexDelta(removed=(9000, 3, 2, 1)))
    router.take(pending.take())
    assert router.blocks == {}


def test_where_more_is_left_than_gone_nothing_is_cleared() -> None:
    """A router that believes in nothing for a moment would send requests anywhere."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    blocks = range(10, 10 + 3 * CLEAR_ABOVE_BLOCKS)
    for block in blocks:
        pending.apply(on_disk(stored(block)))
    router.take(pending.take())
    gone = blocks[: CLEAR_ABOVE_BLOCKS + 10]
    pending.apply(IndexDelta(removed=tuple(gone)))
    events = pending.take()
    assert not any(isinstance(event, ClearedEvent) for event in events)
    router.take(events)
    assert set(router.blocks) == set(blocks) - set(gone)


def test_what_is_told_again_is_told_bit_by_bit_and_does_not_hold_up_what_changes() -> None:
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(on_disk(stored(*range(1, 3 * AGAIN_BLOCKS))))
    router.take(pending.take())
    router.forget_lower_tiers()
    pending.tell_again()
    router.take(pending.take())
    assert len(router.blocks) == AGAIN_BLOCKS
    pending.apply(stored(9000))
    pending.apply(IndexDelta(removed=(2, 1)))
    pending.tell_again()
    router.take(pending.take())
    assert set(router.blocks) == {*range(3, 2 * AGAIN_BLOCKS + 1), 9000}
    while pending:
        router.take(pending.take())
    assert set(router.blocks) == {*range(3, 3 * AGAIN_BLOCKS), 9000}


def test_s64_something_is_told_again_also_where_nothing_is_below_the_device() -> None:
    """A router notices by an event that comes that it has missed some."""
    pending, router = PendingEvents(BLOCK), FakeRouter()
    pending.apply(stored(1, 2))
    router.take(pending.take())
    pending.tell_again()
    again = pending.take()
    assert [type(event) for event in again] == [StoredEvent, RemovedEvent]
    router.take(again)
    assert router.blocks == {1: {Tier.DEVICE}, 2: {Tier.DEVICE}}
    pending.apply(IndexDelta(removed=(2, 1)))
    router.take(pending.take())
    pending.tell_again()
    assert pending.take() == [ClearedEvent()]


def _could_come_up(node: int, tree: Mapping[int, int | None], tiers: Mapping[int, Tier]) -> bool:
    above = tree[node]
    return tiers[node] != Tier.DEVICE and (above is None or tiers[above] == Tier.DEVICE)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), pace=st.floats(0.0, 1.0))
def test_however_slow_the_publisher_the_router_ends_up_right(seed: int, pace: float) -> None:
    """S64, S65: a random tree grows and shrinks, blocks change tiers, readers come anew or forget, at any moment."""
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
            moved, tier = draw.choice([*tree]), draw.choice([*Tier])
            above, below = tree[moved], [node for node in tree if tree[node] == moved]
            # What is on the device is on it from its root on.
            if (
                (above is None or tiers[above] == Tier.DEVICE)
                if tier == Tier.DEVICE
                else (all(tiers[node] != Tier.DEVICE for node in below))
            ):
                tiers[moved] = tier
                pending.apply(IndexDelta(moved=(moved,), tier=tier))
        elif (below := [node for node in tree if _could_come_up(node, tree, tiers)]) and draw.random() < 0.3:
            # As one message of a rank that computes both anew: first the one behind, then what precedes it.
            parent = draw.choice(below)
            child = parent * 4 + draw.randrange(1, 4)
            if child not in tree and child < 2**64:
                tree[child] = parent
                tiers[parent] = tiers[child] = Tier.DEVICE
                pending.apply(stored(child, parent=parent))
                if draw.random() < pace:
                    router.take(pending.take())
                pending.apply(IndexDelta(moved=(parent,), tier=Tier.DEVICE))
        else:
            parent = draw.choice([None, *(node for node in tree if tiers[node] == Tier.DEVICE)])
            # Few names, so that blocks come back after they were removed.
            child = (parent or 0) * 4 + draw.randrange(1, 4)
            if child not in tree and child < 2**64:
                tree[child], tiers[child] = parent, Tier.DEVICE
                pending.apply(stored(child, parent=parent))
        assert len(pending) <= 2 * (len(tree) + len(pending._published)) + 2
        if draw.random() < 0.03:
            pending.begin_anew()
        if draw.random() < 0.05:
            pending.tell_again()
        if draw.random() < pace:
            router.take(pending.take())
            assert all(router.blocks[node] == {tiers.get(node)} for node in router.blocks)
        if draw.random() < 0.05:
            router.forget_lower_tiers()
    router.take(pending.take())
    pending.tell_again()
    router.take(pending.take())
    assert router.refused == router.unknown == []
    assert router.blocks == {node: {tier} for node, tier in tiers.items()}
