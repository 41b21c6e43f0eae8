"""Which block is reusable, and where it is, when it is published twice, computed again or lost."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.results import StoredBlock
from wavepp_worker.cache.tree import BlockTree
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import BLOCK, CacheBench, attention, key, keys_of, prompt

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


def test_a_block_published_twice_is_stored_once() -> None:
    bench = CacheBench(attention(16, host=8), WindowSpec("recurrent", "recurrent", 8, 2, interval=4))
    assert bench.prepare("a", prompt(1, 7)).committed
    assert bench.prepare("b", prompt(1, 7)).committed
    bench.materialise("a")
    bench.materialise("b")
    bench.compute("a")
    bench.compute("b")
    bench.release("a")
    assert bench.cache.use().reusable == 0
    bench.release("b")
    assert bench.cache.use().reusable == 3
    assert len(bench.tree(1).nodes) == 1
    bench.cache.audit()


def test_recomputing_a_block_that_sits_below_the_device_brings_it_up_without_a_copy() -> None:
    bench = CacheBench(attention(4, host=4), WindowSpec("recurrent", "recurrent", 3, 3, interval=4))
    bench.run("a", prompt(1, 5))
    assert bench.prepare("again", prompt(1, 5), candidate=0).committed
    assert bench.prepare("b", prompt(2, 2)).committed
    bench.materialise("again")
    bench.materialise("b")
    assert bench.places(prompt(1, 4)) == [HOST, HOST]
    bench.compute("again")
    assert bench.places(prompt(1, 4)) == [DEVICE, DEVICE]
    assert bench.places(prompt(1, 4), window=1)[1] == DEVICE
    for name in ("again", "b"):
        bench.release(name)
    bench.cache.audit()


@pytest.mark.parametrize("window", [attention(4, host=4), WindowSpec("near", "sliding", 4, 4, span=4)])
def test_recomputing_a_block_that_another_request_holds_on_the_host_spares_it_the_copy(
    window: WindowSpec,
) -> None:
    bench = CacheBench(window)
    bench.run("a", prompt(1, 4))
    bench.run("pushes it down", prompt(2, 8))
    assert bench.places(prompt(1, 4)) == [HOST, HOST]
    assert bench.lease("holder", [*prompt(1, 4), 9]) == 4
    assert bench.prepare("again", prompt(1, 4), candidate=0).committed
    bench.materialise("again")
    bench.compute("again")
    assert bench.places(prompt(1, 4))[1] == DEVICE
    bench.release("again")
    assert bench.cache.reserve("holder")
    assert DEVICE not in [move.target[0] for move in bench.materialise("holder").moves]
    bench.compute("holder")


def test_lost_bytes_are_forgotten_with_all_that_follows_and_their_holders_named() -> None:
    bench = CacheBench(attention(7, host=1, disk=8))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 14))
    assert bench.places(prompt(1, 8)) == [HOST, DISK, DISK, DISK]
    tokens = [*prompt(1, 8), 9, 9, 9]
    held = bench.lease("c", tokens)
    assert bench.lease("bystander", [*prompt(2, 2), 9]) == 2
    assert bench.cache.reserve("c")
    claimed = bench.materialise("c")
    onboarded = [move for move in claimed.moves if move.source[0] == DISK]
    lost = [Copy(move.window, move.key, *move.target) for move in onboarded[:1]]
    assert lost
    at = keys_of(tokens).index(lost[0].key)
    assert bench.cache.lose(lost) == ("c",)
    bench.cache.check()
    assert bench.cache.hint(keys_of(tokens), 11) == at * BLOCK < held
    bench.cache.publish("c", 11)
    bench.cache.check()
    assert bench.cache.match(keys_of(tokens), 11) == at * BLOCK
    bench.release("c")
    bench.release("bystander")
    bench.cache.audit()
    assert bench.cache.lose(lost) == ()


def test_a_lost_copy_on_disk_costs_only_the_copy() -> None:
    bench = CacheBench(attention(4, disk=4))
    bench.run("a", prompt(1, 4))
    moves = bench.cache.flush()
    bench.execute(moves)
    assert bench.cache.lose([Copy(0, moves[0].key, *moves[0].target)]) == ()
    bench.cache.check()
    assert bench.cache.match(keys_of(prompt(1, 4)), 5) == 4
    assert bench.cache.tiers()[Tier.DISK].used == 1


def tree(device: int, disk: int = 0) -> BlockTree:
    return BlockTree(0, (device, 0, disk), HintIndex())


def test_changes_are_net_and_in_an_order_that_can_be_replayed() -> None:
    books = tree(4)
    first = books.attach(key(1), None, 0, DEVICE, 0, held=True)
    second = books.attach(key(2), first, 1, DEVICE, 1, held=True)
    books.attach(key(3), second, 2, DEVICE, 2, held=True)
    books.detach(second)
    assert books.take_changes() == ([StoredBlock(key(1), None)], [], [])
    second = books.attach(key(2), first, 1, DEVICE, 3, held=True)
    books.attach(key(3), second, 2, DEVICE, 1, held=True)
    assert books.take_changes() == ([StoredBlock(key(2), key(1)), StoredBlock(key(3), key(2))], [], [])
    books.detach(second)
    books.attach(key(2), first, 1, DEVICE, 3, held=True)
    assert books.take_changes() == ([], [key(3)], [])


def test_room_is_what_is_free_or_held_by_nobody() -> None:
    books = tree(4, disk=3)
    kept, spare = books.pools[DEVICE].take(2)
    node = books.attach(key(1), None, 0, DEVICE, kept, held=True)
    books.attach(key(2), node, 1, DEVICE, spare, held=False)
    assert (books.room(DEVICE), books.room(DISK)) == (3, 3)
    books.note_copy(node, books.pools[DISK].take(1)[0])
    assert books.room(DISK) == 3, "the second copy of a held block can be dropped"
    books.unpin([node])
    assert books.room(DEVICE) == 4


def test_a_block_that_is_held_keeps_its_slot_after_it_is_detached() -> None:
    books = tree(1)
    node = books.attach(key(1), None, 0, DEVICE, books.pools[DEVICE].take(1)[0], held=True)
    assert books.detach(node) == [node]
    assert books.room(DEVICE) == 0
    books.unpin([node])
    assert books.pools[DEVICE].free == 1


def test_what_nobody_holds_is_forgotten_on_every_tier_at_once() -> None:
    bench = CacheBench(attention(4, host=2, disk=8))
    for number in (1, 2, 3, 4):
        bench.run(f"r{number}", prompt(number, 4))
    assert bench.places(prompt(1, 4)) == [DISK, DISK]
    assert bench.lease("held", prompt(1, 5)) == 4
    bench.cache.take_changes()
    cleared = bench.cache.clear()
    assert cleared.forgotten == (4, 2, 0)
    assert cleared.held == 2
    assert [copy.key for copy in cleared.on_disk] == keys_of(prompt(1, 4)), (
        "what is leased stays, on disk as well"
    )
    assert set(bench.cache.take_changes().removed) == {
        key for at in (2, 3, 4) for key in keys_of(prompt(at, 4))
    }
    assert [tier.evicted for tier in bench.cache.tiers()] == [0, 0, 0], "nobody was short of room"
    bench.cache.check()
    assert bench.cache.commit("held", 4).committed
    bench.materialise("held")
    bench.release("held")
    assert bench.cache.clear().forgotten == (2, 0, 0)
    bench.cache.audit()
    assert [tier.used for tier in bench.cache.tiers()] == [0, 0, 0]
