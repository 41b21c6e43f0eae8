"""Incidents of other engines with who owns which block, as far as they concern one rank's cache."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import AuditError

from tests.support.cache_bench import BLOCK, CacheBench, attention, keys_of, prompt, recurrent


def test_s15_s28_unequal_ranks_use_their_own_room_and_the_smallest_one_decides() -> None:
    small, large = CacheBench(attention(6)), CacheBench(attention(40))
    for first in range(8):
        for rank in (small, large):
            rank.run(f"fill{first}", prompt(first, 8))
    assert small.cache.hint(keys_of(prompt(2, 8)), 9) == 0
    assert large.cache.hint(keys_of(prompt(2, 8)), 9) == 8
    tokens = prompt(50, 12)
    for rank in (small, large):
        assert rank.prepare("a", tokens).committed
    assert small.prepare("b", prompt(51, 4)) is None
    assert large.prepare("b", prompt(51, 4)).committed
    assert large.release("b")
    small.cache.check()
    large.cache.check()
    assert small.release("a")
    assert large.release("a")
    assert small.prepare("c", prompt(52, 13)) is None
    assert large.prepare("c", prompt(52, 80)).committed


def test_s18_two_requests_that_fit_alone_but_not_together_run_one_after_the_other() -> None:
    bench = CacheBench(attention(8))
    bench.run("old", prompt(1, 6))
    first, second = [*prompt(1, 4), *prompt(2, 6)], [*prompt(1, 4), *prompt(3, 6)]
    assert bench.prepare("first", first).committed
    assert bench.prepare("second", second).committed
    # Both hold the shared prefix of 2 blocks and 3 of their own: exactly the pool. A third one has to wait.
    assert bench.prepare("third", prompt(4, 2)) is None
    for name in ("first", "second"):
        bench.materialise(name)
        bench.compute(name)
    assert bench.prepare("third", prompt(4, 2)) is None
    bench.release("first")
    assert bench.prepare("third", prompt(4, 2)).committed
    bench.materialise("third")
    bench.compute("third")
    bench.release("second")
    bench.release("third")
    bench.cache.audit()


def test_s18_room_that_is_reserved_piecemeal_would_deadlock() -> None:
    """Each needs 5 of 8 blocks: with room for its loaded prefix only, both would start, none finish."""
    bench = CacheBench(attention(8))
    assert bench.prepare("a", prompt(1, 10)).committed
    assert bench.prepare("b", prompt(2, 10)) is None
    bench.materialise("a")
    bench.compute("a", 3)
    assert bench.prepare("b", prompt(2, 10)) is None
    bench.compute("a")
    bench.release("a")
    bench.run("b", prompt(2, 10))
    bench.cache.audit()


def test_s19_demand_counts_every_block_a_request_will_take() -> None:
    """Also those of its prefix that it brings up from the host, its state, and the snapshots it leaves behind."""
    bench = CacheBench(attention(8, host=4), recurrent(5, host=2))
    bench.run("a", prompt(1, 9))
    bench.run("b", prompt(2, 16))
    assert bench.prepare("c", prompt(1, 13)) == Prepared(8, True)
    assert bench.cache.tiers()[Tier.HOST].used == 4, "all of its prefix is on the host"
    assert [bench.ledger(window).get("c").blocks for window in (0, 1)] == [4 + 3, 1 + 1]
    assert bench.prepare("d", prompt(3, 3)) is None, "2 blocks fit beside the 3 new ones only"
    assert bench.prepare("e", prompt(3, 2)) == Prepared(0, True)
    for name in ("e", "c"):
        bench.materialise(name)
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


def test_s21_a_prefix_evicted_between_hint_and_lease_only_lowers_the_endpoint() -> None:
    bench = CacheBench(attention(5))
    bench.run("a", prompt(1, 8))
    tokens = [*prompt(1, 8), 7]
    stale = bench.cache.hint(keys_of(tokens), len(tokens))
    assert stale == 8
    bench.run("b", prompt(2, 6))
    prepared = bench.prepare("c", tokens, stale)
    assert prepared is not None
    assert prepared.endpoint < stale
    assert not prepared.committed
    assert bench.cache.commit("c", prepared.endpoint).committed
    bench.materialise("c")
    bench.compute("c")
    bench.release("c")
    bench.cache.audit()


def test_s22_tiny_windows_and_aborts_between_commit_and_materialisation() -> None:
    bench = CacheBench(
        attention(2, host=1),
        WindowSpec("sliding", "sliding", 2, span=1),
        recurrent(1),
        WindowSpec("stateless", "recurrent", 1),
    )
    for number in range(20):
        name, tokens = f"r{number}", prompt(number % 3, 1 + number % 4)
        assert bench.prepare(name, tokens) is not None
        if number % 3 == 0:
            bench.release(name)
            bench.cache.audit()
            continue
        bench.materialise(name)
        assert bench.begin(name, len(tokens)).snapshots[2] == {}
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()
    assert bench.prepare("longer than the cache", prompt(9, 5)) is None


def test_s23_nobody_evicts_what_an_earlier_or_later_request_has_leased() -> None:
    bench = CacheBench(attention(8))
    bench.run("a", prompt(1, 6))
    bench.run("b", prompt(2, 6))
    assert bench.lease("first", [*prompt(1, 6), 8]) == 6
    assert bench.lease("second", [*prompt(2, 6), 8]) == 6
    assert bench.cache.reserve("first")
    bench.materialise("first")
    assert bench.cache.reserve("second")
    bench.materialise("second")
    bench.compute("first")
    bench.compute("second")


def test_s24_full_hits_count_against_the_pool() -> None:
    """A prompt that hits everywhere still holds its prefix: only as many run as the pool has blocks for."""
    bench = CacheBench(attention(5))
    bench.run("a", prompt(1, 8))
    tokens = prompt(1, 9)
    assert bench.prepare("b", tokens).endpoint == 8
    assert bench.cache.use().held == 4
    assert bench.prepare("c", tokens) is None
    bench.materialise("b")
    bench.compute("b")
    bench.release("b")
    assert bench.prepare("c", tokens).committed


def test_s29_every_lease_is_counted() -> None:
    bench = CacheBench(attention(6))
    bench.run("a", prompt(1, 8))
    for name in "bcd":
        assert bench.lease(name, [*prompt(1, 8), 9]) == 8
    bench.release("b")
    bench.release("d")
    assert bench.prepare("pressure", prompt(3, 6)) is None
    bench.run("pressure", prompt(3, 4))
    assert bench.cache.reserve("c") is True
    bench.materialise("c")
    bench.compute("c")


def test_s31_recurrent_states_of_aborted_requests_come_back() -> None:
    bench = CacheBench(attention(32), recurrent(6))
    bench.run("a", prompt(1, 13))
    for stop in (None, 0, 1, 3, 4, 5, 8, 12, 13):
        assert bench.prepare("b", [*prompt(1, 9), *prompt(2, 4)]) is not None
        if stop is not None:
            start = bench.materialise("b") and bench.prompts["b"].position
            if stop > start:
                bench.compute("b", stop)
        bench.release("b")
        bench.cache.audit()
    bench.tree(1).pools[Tier.DEVICE].take(1)
    with pytest.raises(AuditError, match="window recurrent"):
        bench.cache.audit()


@pytest.mark.parametrize("position", range(1, 12))
def test_s32_an_abort_within_a_block_frees_it_and_keeps_the_whole_ones(position: int) -> None:
    bench = CacheBench(attention(8, host=2), WindowSpec("sliding", "sliding", 8, span=4))
    bench.prepare("a", prompt(1, 12))
    bench.materialise("a")
    bench.compute("a", position)
    bench.release("a")
    bench.cache.audit()
    assert bench.cache.match(keys_of(prompt(1, 12)), 12) == min(position // BLOCK * BLOCK, 11)


def test_s35_a_freed_block_is_never_read_again() -> None:
    """The bench poisons whatever is free after every step and reads everything that is reachable."""
    bench = CacheBench(
        attention(9, host=3, disk=2), recurrent(5, host=2), WindowSpec("s", "sliding", 9, span=5)
    )
    chance = random.Random(7)
    for number in range(300):
        live = sorted(bench.prompts)
        if live and (len(live) > 2 or chance.random() < 0.5):
            name = chance.choice(live)
            claimed = bench.prompts[name].claimed
            if claimed is None and chance.random() < 0.7 and bench.cache.holds(name) == "committed":
                bench.materialise(name)
            elif claimed is not None and bench.prompts[name].position < len(bench.prompts[name].tokens):
                bench.compute(name, bench.prompts[name].position + 1)
            else:
                bench.release(name)
        else:
            bench.prepare(
                f"r{number}", [*prompt(chance.randrange(3), chance.randrange(10)), chance.randrange(3)]
            )
    for name in list(bench.prompts):
        bench.release(name)
    bench.cache.audit()
