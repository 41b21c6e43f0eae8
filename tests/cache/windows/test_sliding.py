"""What a sliding window pins, and where it can resume."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import CacheBench, Prompt, keys_of, prompt

HOST, DISK = Tier.HOST, Tier.DISK


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


@pytest.mark.parametrize("span", [1, 3, 4, 20])
def test_blocks_that_the_window_has_passed_are_let_go_of(span: int) -> None:
    """They stay reusable while nobody needs the room, and others get it while the request still runs."""
    bench = CacheBench(WindowSpec("sliding", "sliding", 10, span=span))
    bench.prepare("a", prompt(1, 20))
    bench.materialise("a")
    for computed in range(4, 21, 4):
        bench.compute("a", computed)
        first = max(0, computed - span) // 2
        use = bench.cache.use()
        assert (use.held, use.reusable) == (computed // 2 - first, first)
        # What is yet to be computed is reserved.
        assert use.escrowed == use.free == (20 - computed) // 2
        assert bench.reservation("a").shares[0].table[:first] == [-1] * first
    # What is left is what a token after the prompt sees, for whoever the KV is handed to.
    bench.release("a")
    assert bench.lease("b", [*prompt(1, 20), 9]) == 20


def test_what_others_hold_already_is_freed_where_the_window_has_passed_it() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 20, span=4))
    for name in "ab":
        bench.prepare(name, prompt(1, 16))
        bench.materialise(name)
    bench.compute("a", 8)
    bench.compute("b", 8)
    bench.compute("b")
    # Blocks 2 and 3 of b are private, as a holds their like; b has passed them.
    assert bench.reservation("b").shares[0].private == set()
    bench.release("b")
    bench.compute("a")
    bench.release("a")
    bench.verify()


def test_a_writer_that_has_passed_a_prefix_is_not_waited_for() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 20, span=4))
    bench.prepare("writer", prompt(1, 16))
    bench.materialise("writer")
    share = bench.reservation("writer").shares[0]
    with bench.cache.windows() as (window,):
        assert window.ahead("writer", share, 0, 16, 4) == 4
    bench.compute("writer", 12)
    with bench.cache.windows() as (window,):
        assert window.ahead("writer", share, 0, 16, 5) == 0
        assert window.ahead("writer", share, 0, 16, 6) == 6


# A window of two blocks, and of a third, as a chunk may end within one; chunks of up to two blocks.
ROLLING = WindowSpec("sliding", "sliding", 9, span=4, wave=2)


def test_a_request_reserves_a_window_and_the_blocks_of_its_chunk_are_set_aside_for_all() -> None:
    bench = CacheBench(ROLLING)
    assert bench.prepare("a", prompt(1, 40)).committed
    assert bench.prepare("b", prompt(2, 39)).committed
    # Seven of nine: each three, and two for the wave, whichever of them it is.
    assert bench.prepare("c", prompt(3, 40)) is None
    for name in "ab":
        bench.materialise(name)
        assert bench.cache.use().escrowed + bench.cache.use().held <= 6
    for computed in range(4, 41, 4):
        for name, length in (("a", 40), ("b", 39)):
            bench.compute(name, min(length, computed))
            assert bench.cache.use().held <= 6
    with bench.cache.windows() as (window,):
        assert window.set_aside == 2
    for name in "ab":
        bench.release(name)
    # What they passed last, and what they hold at their ends, can be reused.
    assert bench.lease("d", [*prompt(1, 40), 9]) == 40


def test_a_chunk_of_more_than_is_set_aside_is_an_error() -> None:
    bench = CacheBench(ROLLING)
    bench.prepare("a", prompt(1, 40))
    bench.materialise("a")
    with pytest.raises(
        ValueError, match="up to token 12 in one wave, which takes 6 blocks, where 3 are its own and 2"
    ):
        bench.cache.begin("a", 12)


def test_who_holds_what_a_running_request_will_pass_takes_room() -> None:
    """Else the request had nothing to go on with: what it passes would not come back."""
    bench = CacheBench(ROLLING)
    bench.prepare("a", prompt(1, 40))
    bench.materialise("a")
    bench.compute("a", 8)
    # Nine, of which a has three, two of them in blocks, and two are set aside: four are left, and two of these.
    assert bench.cache.use().free == 5
    assert bench.lease("reader", [*prompt(1, 8), 7]) == 8
    with bench.cache.windows() as (window,):
        assert (window.tree.lent, window.unreserved) == (2, 9 - 2 - 1 - 2 - 2)
    assert bench.cache.reserve("reader")
    assert bench.prepare("b", prompt(2, 5)) is None
    bench.compute("a")
    bench.materialise("reader")
    bench.compute("reader")
    bench.release("a")
    bench.release("reader")
    with bench.cache.windows() as (window,):
        assert (window.tree.lent, window.unreserved) == (0, 7)


def test_what_a_window_has_passed_goes_before_the_ends_of_older_prompts() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 12, span=4, wave=2))
    bench.run("old", prompt(1, 8))
    bench.run("new", prompt(2, 60))
    assert bench.lease("again", [*prompt(1, 8), 9]) == 8


def test_where_others_are_expected_to_part_is_not_passed_for_good() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 12, span=4, wave=2))
    bench.prepare("a", prompt(1, 20))
    bench.cache.ask("a", 8)
    bench.materialise("a")
    bench.compute("a")
    bench.release("a")
    bench.run("new", prompt(2, 60))
    assert bench.lease("other", [*prompt(1, 8), 9, 9, 9]) == 8


def test_who_waits_for_what_a_request_will_pass_takes_room_for_it_before() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 10, span=4, wave=2))
    bench.prepare("writer", prompt(1, 40))

    def behind(name: str, end: int) -> Prepared | None:
        tokens = [*prompt(1, end), 5]
        prepared = bench.cache.prepare(name, keys_of(tokens), len(tokens), end, writer="writer")
        bench.prompts[name] = Prompt(tokens, keys_of(tokens))
        return prepared

    # Of the eight that are not set aside the writer has three, those who wait one each, and the two blocks they share.
    assert behind("a", 8) == behind("b", 8) == Prepared(8, True)
    assert bench.ledger().promised == 3 + 2 + 1 + 1
    # Two blocks more would be too many, and so is a request that computes all of it.
    assert behind("c", 12) is None
    bench.materialise("writer")
    bench.compute("writer", 8)
    with bench.cache.windows() as (window,):
        assert (window.tree.lent, window.ledger.promised) == (2, 1 + 1 + 1)
    bench.compute("writer")
    for name in "ab":
        bench.materialise(name)
        bench.compute(name)
    for name in ("a", "b", "writer"):
        bench.release(name)
    bench.cache.audit()


def _behind(bench: CacheBench, name: str, blocks: int) -> bool:
    """Have a request wait for the first blocks of ``writer``; whether it is committed."""
    tokens = [*prompt(1, 2 * blocks), *[int(name)] * 4]
    keys = keys_of(tokens)
    prepared = bench.cache.prepare(name, keys, len(tokens), 2 * blocks, writer="writer")
    if prepared is not None:
        bench.prompts[name] = Prompt(tokens, keys)
    return prepared is not None and prepared.committed


@pytest.mark.parametrize("span", [3, 6, 8])
@pytest.mark.parametrize("ends", [(2, 3), (4, 3), (4, 6), (5, 5)])
def test_promise_3_two_that_leave_a_prompt_at_different_places_find_the_room_that_is_committed(
    span: int, ends: tuple[int, int]
) -> None:
    """What both need is held by the first of them, and still to be lent to the other."""
    for blocks in range(8, 30):
        bench = CacheBench(WindowSpec("sliding", "sliding", blocks, span=span, wave=3))
        prepared = bench.prepare("writer", prompt(1, 16))
        if prepared is None or not prepared.committed:
            continue
        committed = [_behind(bench, name, end) for name, end in zip("23", ends, strict=True)]
        bench.materialise("writer")
        for computed in range(1, 17):
            bench.compute("writer", computed)
        assert bench.cache.ready("2")
        assert bench.cache.ready("3")
        assert blocks < 29 or committed == [True, True]


def test_promise_3_who_goes_down_while_it_waits_takes_room_for_what_it_waits_for_then() -> None:
    committed = []
    for blocks in range(14, 24):
        bench = CacheBench(WindowSpec("sliding", "sliding", blocks, span=6, wave=3))
        assert bench.prepare("writer", prompt(1, 16)).committed
        assert _behind(bench, "2", 6)
        assert _behind(bench, "3", 6)
        lowered = bench.cache.commit("2", 8)
        bench.verify()
        committed.append(lowered.committed)
    assert committed == sorted(committed)
    assert committed[0] is False
    assert committed[-1] is True


def test_tiers_get_what_prompts_end_with_and_where_they_part_and_nothing_that_is_passed() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 7, host_blocks=4, disk_blocks=2, span=4, wave=2))
    bench.prepare("a", prompt(1, 20))
    bench.cache.ask("a", 8)
    bench.materialise("a")
    bench.compute("a")
    bench.release("a")
    for first in range(2, 5):
        bench.run(f"p{first}", prompt(first, 20))
    # Windows of two blocks: behind token 8, where others part, and at the ends. What was passed is nowhere.
    assert bench.places(prompt(1, 20)) == [None, None, *[DISK] * 2, *[None] * 4, *[HOST] * 2]
    assert bench.places(prompt(2, 20))[:8] == [None] * 8
    assert all(bench.places(prompt(2, 20))[8:])
    for name, shared in (("end", 20), ("part", 8)):
        assert bench.lease(name, [*prompt(1, shared), 9, 9, 9]) == shared
        assert bench.cache.reserve(name)
        bench.materialise(name)
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


def test_what_is_passed_is_not_written_to_disk_at_the_end() -> None:
    bench = CacheBench(WindowSpec("sliding", "sliding", 12, disk_blocks=12, span=4, wave=2))
    bench.run("a", prompt(1, 20))
    assert [move.key for move in bench.cache.flush()] == keys_of(prompt(1, 20))[8:]
