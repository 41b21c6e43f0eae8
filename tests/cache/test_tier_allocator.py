"""Where blocks go when the device is full, and how they come back."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.tier_allocator import TierAllocator
from wavepp_worker.cache.tree import BlockTree
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import CacheBench, attention, key, keys_of, prompt

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


def directions(moves: tuple[Move, ...]) -> list[tuple[Tier, Tier]]:
    return [(move.source[0], move.target[0]) for move in moves]


def test_blocks_sink_tier_by_tier_least_recently_used_and_deepest_first() -> None:
    bench = CacheBench(attention(4, host=2, disk=1))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 4))
    assert directions(bench.run("c", prompt(3, 2)).moves) == [(DEVICE, HOST)]
    assert (bench.places(prompt(1, 4)), bench.places(prompt(2, 4))) == ([DEVICE, HOST], [DEVICE, DEVICE])
    assert directions(bench.run("d", prompt(4, 4)).moves) == [(HOST, DISK), (DEVICE, HOST), (DEVICE, HOST)]
    assert (bench.places(prompt(1, 4)), bench.places(prompt(2, 4))) == ([HOST, DISK], [DEVICE, HOST])
    assert directions(bench.run("e", prompt(5, 2)).moves) == [(HOST, DISK), (DEVICE, HOST)]
    assert bench.places(prompt(1, 4)) == [DISK, None]


def test_each_tier_counts_what_came_what_went_and_what_was_lost() -> None:
    bench = CacheBench(attention(4, host=2, disk=1))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 8))
    # Of the four blocks of "a" two went to the host, one to disk, and one is lost to make room.
    device, host, disk = bench.cache.tiers()
    assert (device.used, device.offloaded, device.onboarded, device.evicted) == (4, 0, 0, 1)
    assert (host.used, host.offloaded, host.onboarded, host.evicted) == (2, 2, 0, 0)
    assert (disk.used, disk.offloaded, disk.onboarded, disk.evicted) == (1, 1, 0, 0)
    bench.run("again", [*prompt(1, 6), 9])
    device, host, disk = bench.cache.tiers()
    assert (host.onboarded, disk.onboarded) == (2, 1)
    third = bench.tree().nodes[keys_of(prompt(1, 6))[2]]
    bench.cache.lose([Copy(0, third.key, third.tier, third.slot)])
    assert [each.lost for each in bench.cache.tiers()] == [1, 0, 0]
    assert not any(each.off for each in bench.cache.tiers())
    bench.cache.lose_disk(0)
    assert [each.off for each in bench.cache.tiers()] == [False, False, True]
    bench.cache.audit()


def test_a_leased_prefix_is_onboarded_from_every_tier_in_its_order() -> None:
    bench = CacheBench(attention(6, host=2, disk=2))
    bench.run("a", prompt(1, 12))
    bench.run("b", prompt(2, 8))
    assert bench.places(prompt(1, 12)) == [DEVICE, DEVICE, HOST, HOST, DISK, DISK]
    assert bench.lease("again", prompt(1, 12), 10) == 10
    assert bench.cache.reserve("again")
    loads = [move for move in bench.materialise("again").moves if move.target[0] == DEVICE]
    assert [move.key for move in loads] == keys_of(prompt(1, 12))[2:5]
    assert [move.source[0] for move in loads] == [HOST, HOST, DISK]
    bench.compute("again")
    bench.release("again")
    bench.cache.audit()


def test_a_block_loaded_from_disk_keeps_its_copy_until_the_slot_is_needed() -> None:
    bench = CacheBench(attention(2, host=1, disk=2))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 4))
    bench.run("c", prompt(3, 4))
    keys = keys_of(prompt(1, 4))
    bench.run("d", [*prompt(1, 2), 9])
    node = bench.tree().nodes.get(keys[0])
    assert node is not None
    assert (node.tier, node.disk_copy >= 0) == (DEVICE, True)
    spilled = bench.run("e", prompt(4, 4)).moves
    assert (DISK, node.disk_copy) not in [move.target for move in spilled]
    for first in range(5, 9):
        bench.run(f"r{first}", prompt(first, 4))
    assert keys[0] not in bench.tree().nodes
    bench.cache.audit()


def test_going_down_to_a_tier_that_has_a_copy_copies_nothing() -> None:
    bench = CacheBench(attention(2, disk=4))
    bench.run("a", prompt(1, 2))
    assert directions(bench.run("b", prompt(2, 4)).moves) == [(DEVICE, DISK)]
    assert (DISK, DEVICE) in directions(bench.run("c", [*prompt(1, 2), 9]).moves)
    moves = bench.run("d", prompt(3, 4)).moves
    assert keys_of(prompt(1, 2))[0] not in [move.key for move in moves]
    assert bench.places(prompt(1, 2)) == [DISK]


def test_victims_that_the_host_has_no_room_for_go_straight_to_disk_as_far_as_it_has() -> None:
    bench = CacheBench(attention(8, host=1, disk=4))
    bench.run("a", prompt(1, 16))
    assert directions(bench.run("b", prompt(2, 14)).moves) == [(DEVICE, DISK)] * 4 + [(DEVICE, HOST)]
    assert bench.places(prompt(1, 16)) == [DEVICE, HOST, DISK, DISK, DISK, DISK, None, None]
    bench.cache.audit()


def test_what_follows_a_victim_on_the_host_goes_to_disk_before_it() -> None:
    """The host has room, but it is reserved for the victims of another request."""
    bench = CacheBench(attention(6, host=2, disk=8))
    bench.run("a", prompt(1, 12))
    bench.run("b", prompt(2, 4))
    assert bench.places(prompt(1, 12)) == [DEVICE] * 4 + [HOST] * 2
    assert bench.prepare("reserves", prompt(3, 2)).committed
    assert bench.prepare("c", prompt(4, 10)).committed
    moves = bench.materialise("c").moves
    assert [move.key for move in moves if move.target[0] == DISK] == keys_of(prompt(1, 12))[::-1]
    assert (bench.places(prompt(1, 12)), bench.places(prompt(2, 4))) == ([DISK] * 6, [DEVICE, HOST])
    assert bench.ledger().get("reserves").destinations == 1


def test_without_room_below_a_victim_takes_its_followers_with_it() -> None:
    """The only host block is reserved for the victim of another request."""
    bench = CacheBench(attention(4, host=1))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 2))
    assert bench.places(prompt(1, 8)) == [DEVICE, DEVICE, DEVICE, HOST]
    assert bench.prepare("reserves", prompt(3, 2)).committed
    assert bench.prepare("c", prompt(4, 2)).committed
    assert bench.materialise("c").moves == ()
    assert bench.places(prompt(1, 8)) == [DEVICE, DEVICE, None, None]
    assert len(bench.materialise("reserves").moves) == 1


def test_reserved_destinations_are_not_given_away_twice() -> None:
    bench = CacheBench(attention(6, host=3))
    bench.run("a", prompt(1, 6))
    bench.run("b", prompt(2, 6))
    assert bench.prepare("c", prompt(3, 4)).committed
    assert bench.prepare("d", prompt(4, 4)).committed
    assert [bench.ledger().get(name).destinations for name in "cd"] == [2, 1]
    # d goes first and still leaves c its two destinations.
    assert len(bench.materialise("d").moves) == 1
    assert len(bench.materialise("c").moves) == 2


def test_a_lease_on_the_host_takes_destinations_but_no_room() -> None:
    bench = CacheBench(attention(4, host=2))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 8))
    assert bench.places(prompt(1, 4)) == [HOST, HOST]
    assert bench.prepare("c", prompt(3, 4)).committed
    assert bench.ledger().get("c").destinations == 2
    assert bench.lease("d", [*prompt(1, 4), 9]) == 4
    assert (bench.ledger().get("c").destinations, bench.ledger().get("c").blocks) == (0, 2)
    assert bench.materialise("c").moves == ()
    bench.compute("c")


def test_a_lease_takes_no_more_destinations_than_it_pins() -> None:
    bench = CacheBench(attention(4, host=2))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 8))
    assert bench.prepare("c", prompt(3, 4)).committed
    assert bench.lease("d", prompt(1, 4), 2) == 2
    assert bench.ledger().get("c").destinations == 1


def test_what_is_used_again_is_a_later_victim() -> None:
    bench = CacheBench(attention(6))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 4))
    bench.run("a again", [*prompt(1, 4), 9])
    bench.run("c", prompt(3, 6))
    assert (bench.places(prompt(1, 4)), bench.places(prompt(2, 4))) == ([DEVICE] * 2, [DEVICE, None])


def test_a_flat_window_gives_up_what_it_has_passed_and_the_deepest_of_equals_first() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 4, span=2))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 4))
    assert bench.places(prompt(1, 8)) == [DEVICE, None, None, DEVICE]


def test_more_than_there_is_room_for_is_refused_before_anything_moves() -> None:
    books = BlockTree(0, (3, 2, 0), HintIndex())
    allocator = TierAllocator(books)
    held, spare = allocator.allocate(2, 0, [])
    node = books.attach(key(1), None, 0, DEVICE, held, held=True)
    books.attach(key(2), node, 1, DEVICE, spare, held=False)
    moves: list[Move] = []
    with pytest.raises(ValueError, match="asked for 3 blocks, of 3 there is room for 2"):
        allocator.allocate(3, 2, moves)
    assert moves == []
    assert len(allocator.allocate(2, 2, moves)) == 2
    assert directions(tuple(moves)) == [(DEVICE, HOST)]


def test_without_host_memory_victims_are_offloaded_to_disk() -> None:
    assert TierAllocator(BlockTree(0, (3, 2, 5), HintIndex())).destinations == 2
    assert TierAllocator(BlockTree(0, (3, 0, 5), HintIndex())).destinations == 5
