from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from wavepp_worker import token_ids
from wavepp_worker.dynamo.stop_text import StopText, load_tokenizer

from tests.support.byte_tokenizers import KINDS, make_tokenizer
from tests.support.frontend_text import frontend_text


@pytest.fixture(scope="module")
def tokenizer(text_model: Path) -> Tokenizer:
    return load_tokenizer(text_model)


def say(text: StopText, ids: list[int]) -> tuple[str, list[str], bool]:
    """What is shown, piece by piece, and whether a stop string ended it."""
    pieces = []
    for token in ids:
        piece = text.add(token)
        pieces.append(piece.text)
        if piece.stopped:
            return "".join(pieces), pieces, True
    ending = text.finish()
    pieces.append(ending.text)
    return "".join(pieces), pieces, ending.stopped


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text).ids)


def test_nothing_of_a_stop_string_is_shown(tokenizer: Tokenizer) -> None:
    shown, pieces, stopped = say(StopText(tokenizer, ["cde"]), ids_of(tokenizer, "abcdefg"))
    assert (shown, stopped) == ("ab", True)
    assert pieces == ["a", "b", "", "", ""]


def test_text_that_only_looked_like_a_stop_string_is_shown_in_the_end(tokenizer: Tokenizer) -> None:
    assert say(StopText(tokenizer, ["cdx"]), ids_of(tokenizer, "abcde"))[0] == "abcde"
    assert say(StopText(tokenizer, ["cdx"]), ids_of(tokenizer, "abcd"))[0] == "abcd"


def test_the_stop_string_is_kept_if_asked_for(tokenizer: Tokenizer) -> None:
    text = StopText(tokenizer, ["cd"], keep_stop_string=True)
    assert say(text, ids_of(tokenizer, "abcdef"))[0] == "abcd"


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_are_no_whole_character_end_an_answer_where_dynamo_says_them(kind: str) -> None:
    tokenizer, unread = make_tokenizer(kind), "\N{REPLACEMENT CHARACTER}"
    answer = list(b"ab" + "€".encode()[:1])
    assert say(StopText(tokenizer, ["xx"], says_rest=False), answer)[0] == "ab"
    assert say(StopText(tokenizer, ["bx", "xx"], says_rest=True), answer)[0] == f"ab{unread}"
    shown, _, stopped = say(StopText(tokenizer, [f"b{unread}"], says_rest=True), answer)
    assert (shown, stopped) == ("a", True)
    assert say(StopText(tokenizer, ["xx"], says_rest=True), list(b"ab"))[0] == "ab"


def test_the_first_of_several_stop_strings_counts(tokenizer: Tokenizer) -> None:
    assert say(StopText(tokenizer, ["ef", "cd"]), ids_of(tokenizer, "abcdef"))[0] == "ab"


def test_no_stop_within_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    assert say(StopText(tokenizer, ["b"], min_tokens=3), ids_of(tokenizer, "abcab"))[0] == "abca"


def test_characters_of_several_tokens_come_out_whole(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "a→b")
    assert len(ids) == 5
    shown, pieces, _ = say(StopText(tokenizer, ["zz"]), ids)
    assert shown == "a→b"
    assert "�" not in "".join(pieces)


def test_special_tokens_have_text_only_if_asked_for(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, "a"), 257, *ids_of(tokenizer, "b")]
    assert say(StopText(tokenizer, ["zz"]), ids)[0] == "ab"
    assert say(StopText(tokenizer, ["zz"], skip_special=False), ids)[0] == "a<|end|>b"


def test_a_hidden_token_ends_without_text(tokenizer: Tokenizer) -> None:
    text = StopText(tokenizer, ["zz"])
    assert text.add(ids_of(tokenizer, "a")[0], shown=False).text == ""


def test_the_prompt_is_context_not_text(tokenizer: Tokenizer) -> None:
    prompt = token_ids.pack(ids_of(tokenizer, "prompt"))
    assert say(StopText(tokenizer, ["zz"], prompt=prompt), ids_of(tokenizer, "ab"))[0] == "ab"


def test_a_stop_string_of_the_prompt_ends_nothing() -> None:
    prompt = token_ids.pack(list(b"hunter2: \xe2"))
    text = StopText(make_tokenizer("level"), ["2:"], prompt=prompt)
    assert say(text, list(b"hi"))[0] == "hi"


PIECES = st.sampled_from([b"a", b"ab", "€".encode(), "😀".encode()]) | st.binary(min_size=1, max_size=2)
BYTES = st.lists(PIECES, max_size=8).map(b"".join)
STOPS = st.lists(st.text("ab€😀\N{REPLACEMENT CHARACTER}", min_size=1, max_size=3), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(prompt=BYTES, answer=BYTES, cut=st.integers(0, 3), stops=STOPS, says_rest=st.booleans())
def test_the_text_is_the_one_without_stop_strings_up_to_the_first(
    kind: str, prompt: bytes, answer: bytes, cut: int, stops: list[str], says_rest: bool
) -> None:
    """However prompt and answer are cut: within characters, and with bytes that are none."""
    tokenizer = make_tokenizer(kind)
    before = list(prompt[: len(prompt) - cut])
    text = StopText(tokenizer, stops, prompt=token_ids.pack(before), says_rest=says_rest)
    shown, _, stopped = say(text, list(answer))
    whole = frontend_text(tokenizer, before, list(answer), says_rest=says_rest)
    if whole is None:
        return
    assert stopped == any(stop in whole for stop in stops)
    if not stopped:
        assert shown == whole
        return
    # Up to the token that completes the first of them: where that is, the text so far begins the whole.
    begun = (frontend_text(tokenizer, before, list(answer[:end])) for end in range(len(answer) + 1))
    seen = next(text for text in (*begun, whole) if text is not None and any(stop in text for stop in stops))
    assert shown == seen[: min(seen.index(stop) for stop in stops if stop in seen)]


@settings(max_examples=200, deadline=None)
@given(text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1))
def test_streaming_equals_looking_at_the_whole_text(
    tokenizer: Tokenizer, text: str, stops: list[str]
) -> None:
    shown, _, stopped = say(StopText(tokenizer, stops), ids_of(tokenizer, text))
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    assert stopped == bool(ends)
    if not ends:
        assert shown == text
        return
    # Streaming stops at the first token that completes any stop string.
    seen = text[: min(ends)]
    assert shown == seen[: min(seen.index(stop) for stop in stops if stop in seen)]
