"""What of a cache survives a restart."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import BLOCK, CacheBench, attention, key, keys_of, prompt

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


def directions(moves: tuple[Move, ...]) -> list[tuple[Tier, Tier]]:
    return [(move.source[0], move.target[0]) for move in moves]


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
    after.bytes = {(0, DISK, slot): name for name, _, slot in records}
    after.cache.restore(records)
    after.verify()
    assert after.cache.hint(keys_of(prompt(2, 8)), 9) == 6
    stored, removed, moved = after.cache.take_changes()
    assert ({block.key for block in stored}, removed, moved) == ({name for name, _, _ in records}, [], [])
    assert {block.tier for block in stored} == {DISK}
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
    assert bench.places(prompt(1, 8)) == [DEVICE, DEVICE, HOST, DISK]
    assert bench.lease("c", prompt(1, 8), 8) == 6
    assert bench.lease("d", [*prompt(1, 8), 9]) == 8
    assert bench.cache.flush() == ()
    assert bench.places(prompt(1, 8)) == [DEVICE, DEVICE, HOST, DISK]
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
    assert (bench.places(prompt(1, 2)), bench.places(prompt(2, 4))) == ([None], [DISK, DISK])


def test_restore_drops_orphans_strangers_and_doubles() -> None:
    a, b, c = keys_of(prompt(1, 6))
    bench = CacheBench(attention(4, disk=4))
    bench.bytes = {(0, DISK, 0): a, (0, DISK, 2): b}
    bench.cache.restore(
        [(c, key(77), 1), (b, a, 2), (a, None, 0), (a, None, 3), (key(5), None, 9), (key(6), a, 2)]
    )
    bench.verify()
    assert bench.cache.match([a, b, c], 7) == 4
    assert bench.cache.tiers()[DISK].used == 2
    with pytest.raises(ValueError, match="before the first request"):
        bench.cache.restore([])


def test_a_rank_without_attention_keeps_its_snapshots_on_disk() -> None:
    """They have no parents, and need none to be found: a snapshot says all of what is before it."""
    spec = WindowSpec("recurrent", "recurrent", 4, disk_blocks=3, interval=2 * BLOCK)
    bench = CacheBench(spec)
    bench.run("a", prompt(1, 9))
    moves = bench.cache.flush()
    assert directions(moves) == [(DEVICE, DISK)] * 2
    cache = RankCache([spec], BLOCK)
    cache.restore((move.key, move.parent, move.target[1]) for move in moves)
    keys = keys_of(prompt(1, 9))
    assert (cache.hint(keys, 9), cache.match(keys, 9), cache.match(keys, 8)) == (8, 8, 4)
    assert cache.lease("b", keys, 9, 8) == 8
    cache.release("b")
    cache.audit()
    without_disk = RankCache([WindowSpec("recurrent", "recurrent", 4, interval=2)], BLOCK)
    without_disk.restore([(key(1), None, 0)])
    assert without_disk.flush() == ()
