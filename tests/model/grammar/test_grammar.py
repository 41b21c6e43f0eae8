from __future__ import annotations

import json
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import MOST_GRAMMAR_BYTES, Grammar, check_size


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, {"type": "object"}),
        ('{"type": "object"}', {"type": "object"}),
        (True, {}),
        ("true", {}),
    ],
)
def test_schemas_are_objects_or_texts_of_them(schema: Any, text: Any) -> None:
    assert json.loads(Grammar.of_schema(schema).text) == text


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (5, "this one is 5"),
        (None, "this one is None"),
        (False, "this one is False"),
        ([{}], "an object"),
        ('"text"', "this one is text"),
        ("not json", "that is not JSON"),
        ("[" * 100_000, "nests too deeply"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        Grammar.of_schema(schema)


def test_a_grammar_has_a_size() -> None:
    check_size(Grammar("regex", "a" * MOST_GRAMMAR_BYTES))
    with pytest.raises(InvalidRequest, match="takes 65537 bytes, this deployment takes at most 65536"):
        check_size(Grammar("regex", "a" * (MOST_GRAMMAR_BYTES + 1)))
    with pytest.raises(InvalidRequest, match="takes 65538 bytes"):
        check_size(Grammar("choice", "ü" * (MOST_GRAMMAR_BYTES // 2 + 1)))
    with pytest.raises(InvalidRequest, match="no valid Unicode"):
        check_size(Grammar("regex", "\ud800"))
