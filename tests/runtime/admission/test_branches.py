"""Where others will resume of a prompt, in blocks of two tokens."""

from __future__ import annotations

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.branches import branches
from wavepp_worker.runtime.admission.waiting import Waiting

from tests.support.cache_bench import BLOCK, keys_of


def blocks(text: str) -> BlockKeys:
    """A prompt with a block for each letter."""
    return BlockKeys.of(keys_of([ord(letter) for letter in text for _ in range(BLOCK)]))


def waiting(text: str) -> Waiting:
    """A request with a block for each letter, whose last one is always computed."""
    return Waiting(0.0, BLOCK * len(text), 1, blocks(text), len(text) - 1)


@pytest.mark.parametrize(
    ("start", "others", "expected"),
    [
        (0, ["abcx", "abcy", "abz", "q"], (3, 2, 6)),
        (0, ["abx", "aby", "abcdx"], (2, 4, 6)),
        (0, ["abcdefgh"], (6,)),
        (0, ["abcdef"], (5, 6)),
        (0, ["a", "x"], (6,)),
        (2, ["abcx", "abx"], (3, 6)),
        (5, [], (6,)),
        (6, [], ()),
    ],
)
def test_where_most_of_them_leave_comes_first_and_of_two_the_further_and_the_prompts_end_last(
    start: int, others: list[str], expected: tuple[int, ...]
) -> None:
    assert branches(blocks("abcdef"), start, [waiting(text) for text in others], 6) == expected


@pytest.mark.parametrize(
    ("start", "seen", "expected"),
    [(0, 4, (4, 3, 6)), (4, 4, (6,)), (0, 3, (3, 6)), (0, 6, (6, 3)), (2, 1, (3, 6))],
)
def test_where_an_earlier_prompt_parted_counts_as_one_that_waits(
    start: int, seen: int, expected: tuple[int, ...]
) -> None:
    assert branches(blocks("abcdef"), start, [waiting("abcx")], 6, seen) == expected


def test_a_prompt_without_a_full_block_has_no_branches() -> None:
    assert branches(BlockKeys(), 0, [waiting("abc")], 0) == ()


def test_who_asks_the_same_again_and_who_goes_on_from_a_prompt_of_whole_blocks_resume_at_different_ends() -> (
    None
):
    assert branches(blocks("abcdef"), 0, [], 5) == (5, 6)
    assert branches(blocks("abcdef"), 5, [], 5) == (6,)
    assert branches(blocks("abcdef"), 0, [waiting("abcdefgh")], 5) == (6, 5)
