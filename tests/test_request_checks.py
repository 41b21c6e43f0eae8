from __future__ import annotations

import pytest
from wavepp_worker import token_ids
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.request_checks import (
    MOST_SALT_BYTES,
    check_banned,
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


def test_what_is_kept_beside_every_block_is_short() -> None:
    check_salt("")
    check_salt("ä" * (MOST_SALT_BYTES // 2))
    with pytest.raises(InvalidRequest, match="cache_salt has 1025 bytes, this deployment takes at most 1024"):
        check_salt("x" + "ä" * (MOST_SALT_BYTES // 2))
    with pytest.raises(InvalidRequest, match="salt has"):
        check_salt("\ud800" * MOST_SALT_BYTES, "salt")
