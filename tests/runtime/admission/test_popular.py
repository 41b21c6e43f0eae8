"""Prefixes that are asked for again and again; in blocks of a letter."""

from __future__ import annotations

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.popular import ARRIVALS, LATEST, POPULAR, PopularPrefixes

from tests.runtime.admission.test_order import keys


def test_a_prefix_is_popular_while_enough_of_the_latest_admissions_resumed_after_it() -> None:
    popular = PopularPrefixes()
    for _ in range(POPULAR - 1):
        popular.reused(keys("abcx"), 3)
    assert popular.end(keys("abcy")) == 0
    popular.reused(keys("abcz"), 3)
    assert popular.end(keys("abcy")) == 3
    assert popular.end(keys("ab")) == popular.end(keys("abd")) == popular.end(BlockKeys()) == 0
    for _ in range(LATEST - POPULAR):
        popular.reused(keys("x"), 0)
    assert popular.end(keys("abcy")) == 3
    popular.reused(keys("x"), 0)
    assert popular.end(keys("abcy")) == 0


def test_the_second_of_the_latest_that_reuses_a_prefix_makes_it_popular() -> None:
    """Turns of a conversation each resume after another one, so no number of them does."""
    popular = PopularPrefixes()
    for end in range(1, 8):
        popular.reused(keys("abcdefgh"), end)
    assert popular.end(keys("abcdefgh")) == 0
    popular.reused(keys("abcx"), 3)
    assert popular.end(keys("abcdefgh")) == 3


def test_the_longest_of_several_counts() -> None:
    popular = PopularPrefixes()
    for _ in range(POPULAR):
        popular.reused(keys("abcdx"), 2)
        popular.reused(keys("abcdx"), 4)
    assert popular.end(keys("abcdy")) == 4
    assert popular.end(keys("abxy")) == 2


def test_how_likely_the_next_one_wants_a_prefix() -> None:
    """One who waits for it does not count, and what was wanted long ago does not."""
    popular = PopularPrefixes()
    for _ in range(POPULAR):
        popular.reused(keys("abcx"), 3)
    assert popular.share(keys("abcy")) == 0
    for text in ("abcx", "abcy", "12", "abcz", "ab"):
        popular.arrived(keys(text))
    assert popular.share(keys("abcy")) == (3 - 1) / (5 - 1)
    assert popular.share(keys("12")) == 0, "it is not popular"
    for _ in range(ARRIVALS - 4):
        popular.arrived(keys("12"))
    assert popular.share(keys("abcy")) == (2 - 1) / (ARRIVALS - 1), "the first one is forgotten"
