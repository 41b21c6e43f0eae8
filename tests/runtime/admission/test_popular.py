"""Prefixes that are asked for again and again; in blocks of a letter."""

from __future__ import annotations

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.popular import LATEST, POPULAR, PopularPrefixes

from tests.runtime.admission.test_order import keys


def test_a_prefix_is_popular_while_enough_of_the_latest_admissions_resumed_after_it() -> None:
    popular = PopularPrefixes()
    for _ in range(POPULAR - 1):
        popular.reused(keys("abcx"), 3, fresh=False)
    assert popular.end(keys("abcy")) == 0
    popular.reused(keys("abcz"), 3, fresh=False)
    assert popular.end(keys("abcy")) == 3
    assert popular.end(keys("ab")) == popular.end(keys("abd")) == popular.end(BlockKeys()) == 0
    for _ in range(LATEST - POPULAR):
        popular.reused(keys("x"), 0, fresh=True)
    assert popular.end(keys("abcy")) == 3
    popular.reused(keys("x"), 0, fresh=True)
    assert popular.end(keys("abcy")) == 0


def test_the_second_of_the_latest_that_reuses_a_prefix_makes_it_popular() -> None:
    """Turns of a conversation each resume after another one, so no number of them does."""
    popular = PopularPrefixes()
    for end in range(1, 8):
        popular.reused(keys("abcdefgh"), end, fresh=False)
    assert popular.end(keys("abcdefgh")) == 0
    popular.reused(keys("abcx"), 3, fresh=False)
    assert popular.end(keys("abcdefgh")) == 3


def test_the_longest_of_several_counts() -> None:
    popular = PopularPrefixes()
    for _ in range(POPULAR):
        popular.reused(keys("abcdx"), 2, fresh=False)
        popular.reused(keys("abcdx"), 4, fresh=False)
    assert popular.end(keys("abcdy")) == 4
    assert popular.end(keys("abxy")) == 2


def test_how_likely_who_computes_much_wants_a_prefix() -> None:
    """Of its reuses one does not count, as two may be chance."""
    popular = PopularPrefixes()
    for _ in range(3):
        popular.reused(keys("abcx"), 3, fresh=False)
    assert popular.share(keys("abcy")) == 1, "nobody computed much"
    for at in range(8):
        popular.reused(keys("x"), at % 2, fresh=True)
    assert popular.share(keys("abcy")) == (3 - 1) / 8
    assert popular.share(keys("12")) == 0
    for _ in range(LATEST):
        popular.reused(keys("abcx"), 3, fresh=False)
    assert popular.share(keys("abcy")) == 1, "what is long ago does not count"
