from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from wavepp_worker.dynamo.answer_text import AnswerText

from tests.support.byte_tokenizers import KINDS, SPECIAL, WORD, make_tokenizer
from tests.support.frontend_text import frontend_text

EURO = "€".encode()
SMILE = "😀".encode()


def said(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    text = AnswerText(tokenizer, prompt, skip_special=True)
    return "".join(map(text.add, answer))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_cut_inside_a_character_is_not_said_again(kind: str) -> None:
    tokenizer = make_tokenizer(kind)
    prompt = list(b"hunter2: " + EURO[:1])
    assert said(tokenizer, prompt, list(b"hi")) == "hi"


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_ends_unreadable_is_not_said_again(kind: str) -> None:
    tokenizer = make_tokenizer(kind)
    prompt = list("pass \N{REPLACEMENT CHARACTER}".encode())
    assert said(tokenizer, prompt, list(b"hi")) == "hi"


@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_several_tokens_are_said_whole(kind: str) -> None:
    tokenizer = make_tokenizer(kind)
    text = AnswerText(tokenizer, list(b"ab"), skip_special=True)
    assert [text.add(token) for token in list(b"c" + EURO)] == ["c", "", "", "€"]


def test_the_first_word_of_an_answer_keeps_its_space() -> None:
    tokenizer = make_tokenizer("fallback")
    assert said(tokenizer, list(b"a"), [WORD]) == " word"
    assert said(tokenizer, [], [WORD]) == "word"


def test_a_byte_that_leaves_those_before_it_unreadable_fails_nobody() -> None:
    tokenizer = make_tokenizer("fallback")
    lone = list(EURO[:1] + b"x")
    assert said(tokenizer, list(b"a" + EURO), lone) == frontend_text(tokenizer, list(b"a" + EURO), lone)
    # Four bytes of text before, then a multiple of three: the frontend finds no place to begin at.
    assert frontend_text(tokenizer, list(SMILE), lone) is None
    assert said(tokenizer, list(SMILE), lone) == "\N{REPLACEMENT CHARACTER}x"


def test_special_tokens_have_text_only_if_asked_for() -> None:
    tokenizer = make_tokenizer("level")
    for skip, text in ((True, ""), (False, "<|end|>")):
        assert AnswerText(tokenizer, [], skip_special=skip).add(SPECIAL) == text


PIECES = st.sampled_from([b"a", b": ", EURO, SMILE, "é".encode(), "\N{REPLACEMENT CHARACTER}".encode()])
BYTES = st.lists(PIECES | st.binary(min_size=1, max_size=2), max_size=8).map(b"".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(prompt=BYTES, answer=BYTES, cut=st.integers(0, 3), special=st.sets(st.integers(0, 20), max_size=2))
def test_the_text_is_the_frontends(
    kind: str, prompt: bytes, answer: bytes, cut: int, special: set[int]
) -> None:
    """Both sides end wherever: within characters, with bytes that are none, between special tokens."""
    tokenizer = make_tokenizer(kind)
    before = list(prompt[: len(prompt) - cut])
    after = list(answer)
    for position in special:
        after.insert(position, SPECIAL)
    expected = frontend_text(tokenizer, before, after)
    shown = said(tokenizer, before, after)
    assert expected is None or shown == expected
