"""What a sliding window pins, and where it can resume."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import CacheBench, keys_of, prompt


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
        assert (use.held, use.reusable) == (10 - first, first)
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
