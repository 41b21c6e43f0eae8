from __future__ import annotations

import json
from typing import Any

import pytest
from wavepp_worker.dynamo.guided_options import read_guided_decoding
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar

NOTHING = dict.fromkeys(
    ("json", "regex", "choice", "grammar", "backend", "whitespace_pattern", "structural_tag")
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("options", "grammar"),
    [
        (None, None),
        ({}, None),
        (NOTHING, None),
        *(({**NOTHING, "backend": name}, None) for name in ("auto", "llguidance", "guidance", "xgrammar")),
        ({**NOTHING, "json": SCHEMA}, Grammar("json", json.dumps(SCHEMA))),
        ({"json": SCHEMA, "backend": "xgrammar"}, Grammar("json", json.dumps(SCHEMA))),
        ({"json": json.dumps(SCHEMA)}, Grammar("json", json.dumps(SCHEMA))),
        ({"json": True}, Grammar("json", "{}")),
        ({"regex": "[a-z]+"}, Grammar("regex", "[a-z]+")),
        ({"regex": ""}, Grammar("regex", "")),
        ({"choice": ["a", "ü"]}, Grammar("choice", '["a", "\\u00fc"]')),
        ({"grammar": 'root ::= "a"'}, Grammar("rules", 'root ::= "a"')),
    ],
)
def test_what_the_frontend_sends_is_understood(options: Any, grammar: Grammar | None) -> None:
    assert read_guided_decoding(options) == grammar


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("json", "guided_decoding='json' should be an object"),
        ({"json": 5}, "a JSON schema is an object"),
        ({"json": "{"}, "not JSON"),
        ({"regex": 5}, "guided_regex should be a text"),
        ({"grammar": ["a"]}, "guided_grammar should be a text"),
        ({"choice": []}, "guided_choice should be a list of texts, and not empty"),
        ({"choice": [1]}, "guided_choice should be a list of texts"),
        ({"choice": "a"}, "guided_choice should be a list of texts"),
        ({"whitespace_pattern": " "}, "guided_decoding.whitespace_pattern is not supported"),
        (
            {"regex": "a", "backend": "outlines"},
            "guided_decoding_backend='outlines' is not supported; constraints are compiled by llguidance: "
            "leave it out, or give auto, llguidance, guidance or xgrammar",
        ),
        ({"backend": "lm-format-enforcer"}, "guided_decoding_backend='lm-format-enforcer' is not supported"),
        ({"backend": []}, "guided_decoding_backend=.* is not supported"),
        ({"structural_tag": {}}, "guided_decoding.structural_tag is not supported"),
        ({"json": {}, "regex": "a"}, "has json and regex; an answer is constrained by one of them"),
        ({"regex": "a" * 65537}, "takes 65537 bytes"),
    ],
)
def test_everything_else_is_refused(options: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read_guided_decoding(options)
