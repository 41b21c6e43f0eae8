"""Who computes which blocks, and for whom it goes on; in blocks of two tokens."""

from __future__ import annotations

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.in_the_making import MOST_REMEMBERED, InTheMaking, shareable

from tests.support.cache_bench import BLOCK, keys_of


def blocks(text: str) -> BlockKeys:
    """A prompt with a block for each letter."""
    return BlockKeys.of(keys_of([ord(letter) for letter in text for _ in range(BLOCK)]))


def making(**prompts: str) -> InTheMaking:
    """Admitted in that order, nothing of them cached."""
    made = InTheMaking()
    for name, text in prompts.items():
        made.admitted(name, blocks(text), 0)
    return made


@pytest.mark.parametrize(
    ("text", "present", "limit", "found"),
    [
        ("abcdx", 0, 5, ("long", 4)),
        ("abcd", 0, 3, ("short", 3)),
        ("abcd", 3, 4, ("long", 4)),
        ("abcd", 4, 4, None),
        ("abx", 2, 3, None),
        ("xbcd", 0, 4, None),
        ("", 0, 0, None),
    ],
)
def test_the_writer_is_the_first_of_those_that_make_most(
    text: str, present: int, limit: int, found: tuple[str, int] | None
) -> None:
    made = making(short="abc", long="abcdef", other="abcdef")
    assert made.writer(blocks(text), present, limit) == found


def test_nobody_waits_for_blocks_that_a_request_reads_itself() -> None:
    made = making(first="abcd")
    made.reads("second", "first", 4)
    made.admitted("second", blocks("abcdef"), 4)
    made.ended("first")
    assert made.writer(blocks("abcdx"), 2, 4) is None
    assert made.writer(blocks("abcxyz"), 2, 6) is None, "they part before what it computes"
    assert made.writer(blocks("abcdex"), 2, 5) == ("second", 5)


def test_without_an_owner_a_request_goes_on_for_its_readers_and_nobody_new() -> None:
    made = making(first="abcdef")
    made.reads("near", "first", 2)
    made.reads("far", "first", 4)
    assert made.writer_of("far") == "first"
    assert made.aborted("first") == 4
    assert made.writer(blocks("abcdex"), 0, 5) == ("first", 4)
    made.check()
    made.stopped_reading("far")
    made.stopped_reading("far")
    assert made.take_lowered() == [("first", 2)]
    made.admitted("near", blocks("abx"), 1)
    assert made.take_lowered() == [("first", 1)], "it was lowered before it was admitted"
    made.stopped_reading("near")
    assert (made.take_lowered(), made.take_lowered()) == ([("first", 0)], [])
    assert made.writer(blocks("abcdex"), 2, 5) is None


def test_of_who_is_over_nothing_is_told() -> None:
    made = making(first="abcdef")
    made.reads("reader", "first", 4)
    assert made.aborted("first") == 4
    made.stopped_reading("reader")
    made.ended("first")
    assert made.take_lowered() == []
    assert made.aborted("first") == 0
    assert made.writer_of("reader") == ""


def test_a_reader_beyond_the_end_is_noticed() -> None:
    made = making(first="ab")
    made.reads("reader", "first", 3)
    with pytest.raises(ValueError, match="reader waits for block 3 of first, which ends with 2"):
        made.check()


@pytest.mark.parametrize(("tokens", "expected"), [(8, 3), (9, 4), (1, 0), (0, 0)])
def test_the_last_token_is_always_computed(tokens: int, expected: int) -> None:
    assert shareable(blocks("abcd"), tokens, BLOCK) == expected


def test_where_a_writer_was_found_to_leave_nothing_another_is_found_or_an_earlier_place() -> None:
    made = making(first="abcdef")
    made.reads("reader", "first", 4)
    made.lowered("reader", 2)
    made.lowered("stranger", 0)
    assert made.writer(blocks("abcdx"), 0, 4) == ("first", 2)
    assert made.writer(blocks("abcx"), 2, 3) is None, "it has as much already"
    assert made.writer(blocks("abcdefx"), 0, 6) == ("first", 6)
    made.reads("reader", "first", 2)
    made.lowered("reader", 1)
    assert made.writer(blocks("abcdx"), 0, 4) == ("first", 1)
    made.admitted("second", blocks("abcdey"), 1)
    assert made.writer(blocks("abcdx"), 0, 4) == ("second", 4)


def test_what_is_left_behind_is_known_of_branches_and_of_readers() -> None:
    made = InTheMaking()
    made.admitted("writer", blocks("abcdef"), 0, [3])
    made.reads("reader", "writer", 5)
    assert [made.sure("writer", end) for end in (2, 3, 5)] == [False, True, False]
    made.admitted("reader", blocks("abcdeg"), 5)
    assert made.sure("writer", 5)
    made.ended("writer")
    assert not made.sure("writer", 5)


def test_of_the_writers_that_ended_the_latest_are_remembered() -> None:
    made = making(first="abc", second="abd")
    made.ended("unknown")
    made.ended("first")
    assert made.ended_count == 1
    assert made.made_since(0, blocks("abcx"), 2, 3)
    assert not made.made_since(0, blocks("abdx"), 2, 3), "its writer goes on"
    assert not made.made_since(0, blocks("abcx"), 3, 3), "it needs no more"
    assert not made.made_since(1, blocks("abcx"), 2, 3), "it was looked up after that"
    made.ended("second")
    assert made.made_since(1, blocks("abdx"), 2, 3)
    assert made.made_since(0, blocks("abcx"), 2, 3)
    for number in range(MOST_REMEMBERED):
        made.admitted(str(number), blocks("z"), 0)
        made.ended(str(number))
    assert made.made_since(0, blocks("abcx"), 2, 3), "it may have been made by one that is forgotten"
    assert not made.made_since(2, blocks("abcx"), 2, 3), "it was looked up after that"
    assert not made.made_since(0, blocks("abcx"), 3, 3), "it needs no more"
