"""Text becomes the ids that transformers gives; where that cannot be, it is the request that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.files.text_tokenizer import TextTokenizer


def test_the_ids_are_those_of_transformers(tiny_llama: Path) -> None:
    text = "Why is the sky blue? \u00fc\U0001f600"
    expected = transformers.AutoTokenizer.from_pretrained(tiny_llama)(text)["input_ids"]
    assert expected
    assert TextTokenizer(tiny_llama, 100).ids(text) == expected


def test_text_that_is_no_unicode_is_refused_and_the_next_is_not(tiny_llama: Path) -> None:
    tokenizer = TextTokenizer(tiny_llama, 100)
    with pytest.raises(InvalidRequest, match="give valid Unicode"):
        tokenizer.ids("\ud800")
    assert tokenizer.ids("hello")


def test_without_a_tokenizer_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"has no tokenizer\.json; give token ids"):
        TextTokenizer(tmp_path, 100).ids("hello")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        TextTokenizer(tmp_path, 100).ids("hello")


def test_a_text_that_no_prompt_can_hold_is_refused_before_it_is_made_into_tokens(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"12801 characters.* at most 100 tokens .* at most 12800 characters"
    ):
        TextTokenizer(tmp_path, 100).ids("a" * 12_801)
