from __future__ import annotations

import pytest
from wavepp_worker import token_ids
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.request_checks import (
    MOST_BANNED,
    MOST_SALT_BYTES,
    check_allowed,
    check_banned,
    check_biased,
    check_prompt,
    check_salt,
    first_outside,
)


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (b"", "the prompt is empty"),
        (b"\1\0\0", "cut off; give 4 bytes for each token id"),
        (token_ids.pack([1] * 6), "the prompt has 6 tokens, this worker accepts at most 5; shorten it"),
        (token_ids.pack([1, 100]), "token id 100 is outside the vocabulary of 100 tokens; ids are 0 to 99"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(tokens: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_prompt(tokens, 5, 100)


def test_the_longest_prompt_and_the_highest_id_are_fine() -> None:
    check_prompt(token_ids.pack([0, 99, 0, 99, 0]), 5, 100)


def test_the_first_id_outside_is_found_among_anything() -> None:
    assert first_outside([5, "x", None, 100, -1], 100) == 100
    assert first_outside([0, -1], 100) == -1
    assert first_outside([0, 99, "100"], 100) is None


def test_something_must_be_left_to_choose() -> None:
    check_banned([*range(99), 100, -1], 100)
    with pytest.raises(InvalidRequest, match="all 100 tokens of the vocabulary are banned"):
        check_banned(range(100), 100)


def test_what_is_gone_through_for_every_token_is_short() -> None:
    check_banned([7] * MOST_BANNED, 100)
    for count in (MOST_BANNED + 1, 1_000_000):
        with pytest.raises(
            InvalidRequest, match=f"{count} tokens are banned, this deployment takes at most 1024"
        ):
            check_banned([7] * count, 10_000)


def test_what_is_kept_beside_every_block_is_short() -> None:
    check_salt("")
    check_salt("ä" * (MOST_SALT_BYTES // 2))
    with pytest.raises(InvalidRequest, match="cache_salt has 1025 bytes, this deployment takes at most 1024"):
        check_salt("x" + "ä" * (MOST_SALT_BYTES // 2))
    with pytest.raises(InvalidRequest, match="salt has"):
        check_salt("\ud800" * MOST_SALT_BYTES, "salt")


def test_a_mask_is_of_the_whole_vocabulary_and_leaves_a_token() -> None:
    check_allowed(b"", range(100), 100)
    check_allowed(b"\xff" * 13, range(99), 100)
    check_allowed(b"\0" * 12 + b"\x08", [*range(99), 100, -1], 100)
    with pytest.raises(InvalidRequest, match="bits for 96 tokens, but the vocabulary has 100"):
        check_allowed(b"\xff" * 12, (), 100)
    for mask, banned in (
        (b"\x01" + b"\0" * 12, [0]),
        (b"\0" * 13, []),
        (b"\0" * 12 + b"\xf0", []),
        (b"\xff" * 13, range(100)),
    ):
        with pytest.raises(InvalidRequest, match="no token is left to begin an answer with"):
            check_allowed(mask, banned, 100)


def test_a_bias_is_of_a_token_that_the_model_has() -> None:
    check_biased([(0, 1.0), (99, -1.0)], 100)
    check_biased([(10**9, 1.0)], None)
    with pytest.raises(InvalidRequest, match="logit_bias: token id 100 is outside the vocabulary of 100"):
        check_biased([(0, 1.0), (100, 1.0)], 100)
