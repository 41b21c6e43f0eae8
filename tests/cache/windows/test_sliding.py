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
