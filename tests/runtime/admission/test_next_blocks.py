"""Whose next block somebody computes, as far as requests are known that do."""

from __future__ import annotations

from types import SimpleNamespace

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.next_blocks import NextBlocks

from tests.support.cache_bench import BLOCK, keys_of


def request(text: str) -> SimpleNamespace:
    """It has a block for each letter."""
    return SimpleNamespace(keys=blocks(text))


def blocks(text: str) -> BlockKeys:
    return BlockKeys.of(keys_of([ord(letter) for letter in text for _ in range(BLOCK)]))


def test_the_next_block_of_a_request_is_made_by_whoever_has_the_same_prefix() -> None:
    ahead = NextBlocks([request("abc"), request("x")])
    assert ahead.made(blocks("abd"), 0, 2)
    assert ahead.made(blocks("abd"), 1, 2)
    assert not ahead.made(blocks("abd"), 2, 3), "they part there"
    assert not ahead.made(blocks("abc"), 2, 2), "it needs no more"
    assert not ahead.made(blocks("bbc"), 1, 3), "a block is one only after the same prefix"


def test_who_is_added_later_counts_at_places_that_were_asked_about_before() -> None:
    ahead = NextBlocks()
    assert not ahead.made(blocks("abc"), 1, 3)
    ahead.add(request("x"))
    assert not ahead.made(blocks("abc"), 1, 3)
    ahead.add(request("ab"))
    assert ahead.made(blocks("abc"), 1, 3)
    assert not ahead.made(blocks("abc"), 2, 3), "it ends before"
    assert not ahead.made(blocks("ab"), 2, 3), "there is none"
