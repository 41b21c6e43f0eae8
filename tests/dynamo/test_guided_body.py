from __future__ import annotations

import json
from typing import Any

import pytest
from wavepp_worker.dynamo.guided_body import wanted_grammars
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]


@pytest.mark.parametrize(
    ("body", "grammars"),
    [
        ({}, []),
        ({"guided_json": None, "guided_choice": None, "response_format": {"type": "text"}}, []),
        ({"guided_json": SCHEMA}, [Grammar("json", TEXT)]),
        ({"guided_json": TEXT}, [Grammar("json", TEXT)]),
        ({"guided_regex": "a"}, [Grammar("regex", "a")]),
        ({"guided_regex": "a", "guided_decoding_backend": "xgrammar"}, [Grammar("regex", "a")]),
        ({"guided_decoding_backend": 5}, []),
        ({"guided_choice": ["a", "b"]}, [Grammar("choice", '["a", "b"]')]),
        ({"guided_grammar": 'start: "a"'}, [Grammar("rules", 'start: "a"')]),
        ({"response_format": {"type": "json_object"}}, [Grammar("json", '{"type": "object"}')]),
        ({"response_format": FORMAT}, [Grammar("json", TEXT)]),
        ({"guided_json": True, "response_format": FORMAT}, [Grammar("json", "{}"), Grammar("json", TEXT)]),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}, [Grammar("json", TEXT)]),
        ({"text": {"format": {"type": "json_object"}}}, [Grammar("json", '{"type": "object"}')]),
        ({"tools": TOOLS, "tool_choice": "required"}, [Grammar("json", TEXT)]),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "f"}}}, [Grammar("json", TEXT)]),
        ({"tools": TOOLS, "tool_choice": "auto"}, []),
        ({"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "required"},
         [Grammar("json", TEXT)]),
        # Of a wrong type: the frontend says so.
        ({"guided_regex": 5, "guided_choice": [1], "tools": 5, "tool_choice": "required"}, []),
        ({"response_format": "json", "text": "json"}, []),
        ({"response_format": {"type": "json_schema"}}, []),
        ({"tools": [5, {"function": 5}], "tool_choice": "required"}, []),
    ],
)  # fmt: skip
def test_what_has_to_be_compiled(body: dict[str, Any], grammars: list[Grammar]) -> None:
    if "guided_regex" in body and "guided_choice" in body:
        body = {key: value for key, value in body.items() if key != "guided_choice"}
    assert wanted_grammars(body) == grammars


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json and guided_regex are in one request"),
        ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex and response_format are in one"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend='outlines' is not supported"),
        ({"guided_json": {}, "guided_whitespace_pattern": " "}, "guided_whitespace_pattern is not supported"),
        ({"guided_json": 5}, "a JSON schema is an object"),
        ({"guided_choice": []}, "guided_choice is empty"),
        *(
            (
                {"tools": [{"function": {"name": "f", "parameters": wrong}}], "tool_choice": choice},
                "give a JSON schema",
            )
            for wrong in ("object", 5, [], False)
            for choice in ("required", {"function": {"name": "f"}})
        ),
        ({"response_format": {**FORMAT, "json_schema": {"schema": 5}}}, "a JSON schema is an object"),
        ({"guided_regex": "a" * 65537}, "takes 65537 bytes"),
        ({"guided_grammar": "start: " + "(" * 65 + ")" * 65}, "more than 64 brackets in one another"),
    ],
)
def test_what_the_frontend_or_a_worker_would_fail_at_is_refused(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        wanted_grammars(body)


def test_brackets_that_are_closed_do_not_count() -> None:
    assert wanted_grammars({"guided_grammar": "start: " + "()" * 100})
