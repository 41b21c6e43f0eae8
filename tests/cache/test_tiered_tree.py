"""Where blocks go when the device is full, how they come back, and what survives a restart."""

from __future__ import annotations

import random
import threading

import pytest
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import BLOCK, CacheBench, keys_of

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


def attention(blocks: int, host: int = 0, disk: int = 0) -> WindowSpec:
    return WindowSpec("attention", "full", blocks, host, disk)


def prompt(first: int, tokens: int) -> list[int]:
    return [first] * tokens


def places(bench: CacheBench, tokens: list[int], window: int = 0) -> list[Tier | None]:
    nodes = bench.tree(window).nodes
    return [nodes[key].tier if key in nodes else None for key in keys_of(tokens)]


def directions(moves: tuple[Move, ...]) -> list[tuple[Tier, Tier]]:
    return [(move.source[0], move.target[0]) for move in moves]


def test_blocks_sink_tier_by_tier_least_recently_used_and_deepest_first() -> None:
    bench = CacheBench(attention(4, host=2, disk=1))
    bench.run("a", prompt(1, 4))
    bench.run("b", prompt(2, 4))
    assert directions(bench.run("c", prompt(3, 2)).moves) == [(DEVICE, HOST)]
    assert (places(bench, prompt(1, 4)), places(bench, prompt(2, 4))) == ([DEVICE, HOST], [DEVICE, DEVICE])
    assert directions(bench.run("d", prompt(4, 4)).moves) == [(HOST, DISK), (DEVICE, HOST), (DEVICE, HOST)]
    assert (places(bench, prompt(1, 4)), places(bench, prompt(2, 4))) == ([HOST, DISK], [DEVICE, HOST])
    assert directions(bench.run("e", prompt(5, 2)).moves) == [(HOST, DISK), (DEVICE, HOST)]
    assert places(bench, prompt(1, 4)) == [DISK, None]


def test_a_leased_prefix_is_onboarded_from_every_tier_in_its_order() -> None:
    bench = CacheBench(attention(6, host=2, disk=2))
    bench.run("a", prompt(1, 12))
    bench.run("b", prompt(2, 8))
    assert places(bench, prompt(1, 12)) == [DEVICE, DEVICE, HOST, HOST, DISK, DISK]
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
    assert places(bench, prompt(1, 2)) == [DISK]


def test_victims_that_the_host_has_no_room_for_go_straight_to_disk_as_far_as_it_has() -> None:
    bench = CacheBench(attention(8, host=1, disk=4))
    bench.run("a", prompt(1, 16))
    assert directions(bench.run("b", prompt(2, 14)).moves) == [(DEVICE, DISK)] * 4 + [(DEVICE, HOST)]
    assert places(bench, prompt(1, 16)) == [DEVICE, HOST, DISK, DISK, DISK, DISK, None, None]
    bench.cache.audit()


def test_what_follows_a_victim_on_the_host_goes_to_disk_before_it() -> None:
    """The host has room, but it is reserved for the victims of another request."""
    bench = CacheBench(attention(6, host=2, disk=8))
    bench.run("a", prompt(1, 12))
    bench.run("b", prompt(2, 4))
    assert places(bench, prompt(1, 12)) == [DEVICE] * 4 + [HOST] * 2
    assert bench.prepare("reserves", prompt(3, 2)).committed
    assert bench.prepare("c", prompt(4, 10)).committed
    moves = bench.materialise("c").moves
    assert [move.key for move in moves if move.target[0] == DISK] == keys_of(prompt(1, 12))[::-1]
    assert (places(bench, prompt(1, 12)), places(bench, prompt(2, 4))) == ([DISK] * 6, [DEVICE, HOST])
    assert bench.ledger().get("reserves").destinations == 1


def test_without_room_below_a_victim_takes_its_followers_with_it() -> None:
    """The only host block is reserved for the victim of another request."""
    bench = CacheBench(attention(4, host=1))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 2))
    assert places(bench, prompt(1, 8)) == [DEVICE, DEVICE, DEVICE, HOST]
    assert bench.prepare("reserves", prompt(3, 2)).committed
    assert bench.prepare("c", prompt(4, 2)).committed
    assert bench.materialise("c").moves == ()
    assert places(bench, prompt(1, 8)) == [DEVICE, DEVICE, None, None]
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
    assert places(bench, prompt(1, 4)) == [HOST, HOST]
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
    assert (places(bench, prompt(1, 4)), places(bench, prompt(2, 4))) == ([DEVICE] * 2, [DEVICE, None])


def test_a_flat_window_gives_up_the_deepest_of_equals_first() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 4, span=2))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 4))
    assert places(bench, prompt(1, 8)) == [DEVICE, DEVICE, None, None]


@pytest.mark.parametrize(("span", "kept"), [(1, 1), (2, 1), (3, 2), (4, 2), (7, 4)])
def test_a_sliding_window_pins_what_the_next_token_sees(span: int, kept: int) -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 16, span=span))
    bench.run("a", prompt(1, 10))
    assert bench.lease("b", [*prompt(1, 10), 2]) == 10
    assert len(bench.reservation("b").shares[0].pinned) == kept
    assert bench.cache.reserve("b")
    assert bench.materialise("b").tables[0][: 5 - kept] == [-1] * (5 - kept)
    bench.compute("b")


def test_a_sliding_window_resumes_left_of_a_hole_or_right_of_it() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 16, span=4))
    bench.run("a", prompt(1, 16))
    tree, keys = bench.tree(), keys_of(prompt(1, 16))
    tree.detach(tree.nodes[keys[3]])
    bench.verify()
    for candidate, endpoint in ((15, 14), (12, 12), (10, 6), (8, 6), (6, 6), (4, 4)):
        assert bench.cache.match(keys, candidate + 1) == bench.cache.hint(keys, candidate + 1) == endpoint
        assert bench.lease("b", prompt(1, 16), candidate) == endpoint
        bench.release("b")


def test_a_sliding_lease_goes_down_to_where_committed_room_is_not_touched() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 8, span=6))
    bench.run("a", prompt(1, 10))
    assert bench.lease("shared", prompt(1, 10), 4) == 4
    assert bench.prepare("b", prompt(2, 10)).committed
    # 3 free + 3 reclaimable - 5 committed leave one claim: blocks 1, 0 are held already.
    assert bench.lease("c", [*prompt(1, 10), 9]) == 6
    bench.materialise("b")
    bench.compute("b")


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
    assert places(bench, prompt(1, 4)) == [HOST, HOST]
    bench.compute("again")
    assert places(bench, prompt(1, 4)) == [DEVICE, DEVICE]
    assert places(bench, prompt(1, 4), window=1)[1] == DEVICE
    for name in ("again", "b"):
        bench.release(name)
    bench.cache.audit()


def test_flush_and_restore_keep_the_most_recently_used_prefixes() -> None:
    bench = CacheBench(attention(8, host=4, disk=4))
    for first in (1, 2, 3):
        bench.run(f"r{first}", prompt(first, 8))
    bench.run("hot", [*prompt(2, 6), 9])
    moves = bench.cache.flush()
    bench.execute(moves)
    bench.verify()
    assert {move.target[0] for move in moves} == {DISK}
    nodes = bench.tree().nodes.values()
    on_disk = [node for node in nodes if node.tier == DISK or node.disk_copy >= 0]
    assert len(on_disk) == 4
    assert {node.key for node in on_disk} >= set(keys_of(prompt(2, 6)))
    records = [
        (
            node.key,
            node.parent.key if node.parent else None,
            node.slot if node.tier == DISK else node.disk_copy,
        )
        for node in on_disk
    ]
    random.Random(1).shuffle(records)

    after = CacheBench(attention(8, host=4, disk=4))
    after.bytes = {(0, DISK, slot): key for key, _, slot in records}
    after.cache.restore(records)
    after.verify()
    assert after.cache.hint(keys_of(prompt(2, 8)), 9) == 6
    stored, removed = after.cache.take_changes()
    assert ({block.key for block in stored}, removed) == ({key for key, _, _ in records}, [])
    seen = {None}
    for block in stored:
        assert block.parent in seen
        seen.add(block.key)
    assert after.lease("a", prompt(2, 8)) == 6
    assert after.cache.reserve("a")
    assert directions(after.materialise("a").moves) == [(DISK, DEVICE)] * 3
    after.compute("a")
    after.release("a")
    for first in range(5, 12):
        after.run(f"r{first}", prompt(first, 8))
    after.cache.audit()


def test_flush_writes_nothing_twice_and_respects_what_is_held() -> None:
    bench = CacheBench(attention(4, host=2, disk=3))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 8))
    bench.run("c", prompt(3, 8))
    held = bench.lease("d", [*prompt(1, 8), 9])
    bench.execute(bench.cache.flush())
    bench.verify()
    assert bench.cache.flush() == ()
    assert bench.cache.match(keys_of(prompt(1, 8)), 9) == held
    bench.release("d")
    bench.cache.audit()


def test_flush_never_takes_the_disk_from_under_a_lease() -> None:
    bench = CacheBench(attention(4, host=1, disk=1))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 4))
    assert places(bench, prompt(1, 8)) == [DEVICE, DEVICE, HOST, DISK]
    assert bench.lease("c", prompt(1, 8), 8) == 6
    assert bench.lease("d", [*prompt(1, 8), 9]) == 8
    assert bench.cache.flush() == ()
    assert places(bench, prompt(1, 8)) == [DEVICE, DEVICE, HOST, DISK]
    bench.verify()


def test_what_was_restored_keeps_its_age_for_the_next_flush() -> None:
    """A chain written parents first is as recent as its last block, not as its first one."""
    old, first, second = keys_of(prompt(1, 2))[0], *keys_of(prompt(2, 4))
    bench = CacheBench(attention(4, disk=3))
    bench.bytes = {(0, DISK, 0): old, (0, DISK, 1): first, (0, DISK, 2): second}
    bench.cache.restore([(old, None, 0), (first, None, 1), (second, first, 2)])
    bench.run("new", prompt(3, 2))
    moves = bench.cache.flush()
    bench.execute(moves)
    assert [move.key for move in moves] == keys_of(prompt(3, 2))
    assert (places(bench, prompt(1, 2)), places(bench, prompt(2, 4))) == ([None], [DISK, DISK])


def test_restore_drops_orphans_strangers_and_doubles() -> None:
    a, b, c = keys_of(prompt(1, 6))
    bench = CacheBench(attention(4, disk=4))
    bench.bytes = {(0, DISK, 0): a, (0, DISK, 2): b}
    bench.cache.restore([(c, 77, 1), (b, a, 2), (a, None, 0), (a, None, 3), (5, None, 9), (6, a, 2)])
    bench.verify()
    assert bench.cache.match([a, b, c], 7) == 4
    assert bench.cache.use().disk_used == 2
    with pytest.raises(ValueError, match="before the first request"):
        bench.cache.restore([])


def test_a_rank_without_attention_keeps_nothing_on_disk() -> None:
    cache = RankCache([WindowSpec("recurrent", "recurrent", 4, interval=2)], BLOCK)
    cache.restore([(1, None, 0)])
    assert cache.flush() == ()
    cache.audit()


def test_lost_bytes_are_forgotten_with_all_that_follows_and_their_holders_named() -> None:
    bench = CacheBench(attention(7, host=1, disk=8))
    bench.run("a", prompt(1, 8))
    bench.run("b", prompt(2, 14))
    assert places(bench, prompt(1, 8)) == [HOST, DISK, DISK, DISK]
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
    assert bench.cache.use().disk_used == 1


def test_two_threads_share_the_cache() -> None:
    """One thread prepares and cancels, as admission does; one materialises, publishes and releases."""
    cache = RankCache([attention(64, host=16), WindowSpec("r", "recurrent", 12, interval=8)], BLOCK)
    committed: list[str] = []
    done = threading.Event()
    failures: list[BaseException] = []

    def admit() -> None:
        chance = random.Random(3)
        for number in range(1500):
            tokens = [*prompt(chance.randrange(4), chance.randrange(1, 40)), number]
            keys, name = keys_of(tokens), f"r{number}"
            prepared = cache.prepare(name, keys, len(tokens), cache.hint(keys, len(tokens)), floor=4)
            if prepared is None:
                continue
            if not prepared.committed:
                prepared = cache.commit(name, prepared.endpoint)
            if prepared.committed and chance.random() < 0.7:
                lengths[name] = len(tokens)
                committed.append(name)
            else:
                cache.release(name)

    def execute() -> None:
        chance = random.Random(4)
        while not done.is_set() or committed:
            if committed:
                name = committed.pop(0)
                cache.materialise(name)
                for computed in range(0, lengths[name], 7):
                    cache.publish(name, computed)
                if chance.random() < 0.1:
                    cache.check()
                cache.publish(name, lengths[name])
                cache.release(name)

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    lengths: dict[str, int] = {}
    threads = [threading.Thread(target=guarded, args=(work,)) for work in (admit, execute)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    done.set()
    threads[1].join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    cache.audit()
