"""What an OpenAI request wants its answer to match, told before it is routed. Pure.

The frontend reports some combinations, and whatever a worker refuses, as internal errors. So both are refused up front.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from wavepp_worker.dynamo.guided_options import check_backend
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar, check_size

MOST_BRACKETS = 64
"""That may be open at once in ``guided_grammar``; of many more the frontend makes an internal error."""
_SHOWN = 60
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def wanted_grammars(body: Mapping[str, Any]) -> list[Grammar]:
    """All that has to be compiled for a request; what has the wrong type is left to the frontend.

    Raises:
        InvalidRequest: it wants what cannot be had together or at all, or something is too long.
    """
    _check_combination(body)
    if isinstance(backend := body.get("guided_decoding_backend"), str):
        check_backend(backend)
    grammars = [*_guided(body), *_formats(body), *_tools(body)]
    for grammar in grammars:
        check_size(grammar)
    return grammars


def _check_combination(body: Mapping[str, Any]) -> None:
    if body.get("guided_whitespace_pattern") is not None:
        raise InvalidRequest("guided_whitespace_pattern is not supported; leave it out")
    said = [key for key in _GUIDED if body.get(key) is not None]
    if _schema_of_format(body.get("response_format")) is not None and said != ["guided_json"]:
        said.append("response_format")
    if len(said) > 1:
        raise InvalidRequest(f"{' and '.join(said)} are in one request; constrain the answer by one of them")


def _guided(body: Mapping[str, Any]) -> Iterator[Grammar]:
    if body.get("guided_json") is not None:
        yield Grammar.of_schema(body["guided_json"])
    if isinstance(regex := body.get("guided_regex"), str):
        yield Grammar("regex", regex)
    choices = body.get("guided_choice")
    if choices == []:
        raise InvalidRequest("guided_choice is empty; give the texts that the answer may be, or leave it out")
    if isinstance(choices, list) and choices and all(isinstance(each, str) for each in choices):
        yield Grammar("choice", json.dumps(choices))
    if isinstance(rules := body.get("guided_grammar"), str):
        if _open_brackets(rules) > MOST_BRACKETS:
            raise InvalidRequest(
                f"guided_grammar has more than {MOST_BRACKETS} brackets in one another; name parts of it as rules"
            )
        yield Grammar("rules", rules)


def _open_brackets(text: str) -> int:
    now = most = 0
    for char in text:
        now += (char in "([{") - (char in ")]}")
        most = max(most, now)
    return most


def _formats(body: Mapping[str, Any]) -> Iterator[Grammar]:
    text = body.get("text")
    for form in (body.get("response_format"), text.get("format") if isinstance(text, Mapping) else None):
        schema = _schema_of_format(form)
        if schema is not None:
            yield Grammar.of_schema(schema)


def _schema_of_format(form: Any) -> Any:
    """The schema of ``response_format``, or of ``text.format`` in a request to ``/v1/responses``."""
    if not isinstance(form, Mapping):
        return None
    if form.get("type") == "json_object":
        return {"type": "object"}
    if form.get("type") != "json_schema":
        return None
    inner = form.get("json_schema")
    return (inner if isinstance(inner, Mapping) else form).get("schema")


def _tools(body: Mapping[str, Any]) -> Iterator[Grammar]:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(tools, list) or not (choice == "required" or isinstance(choice, Mapping)):
        return
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        if isinstance(parameters, Mapping):
            yield Grammar.of_schema(parameters)
        elif parameters is not None:
            raise InvalidRequest(
                f"the parameters of a tool that the answer must call are {json.dumps(parameters)[:_SHOWN]}; give a "
                f"JSON schema, which is an object, or leave them out"
            )
