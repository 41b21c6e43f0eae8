"""From Dynamo's ``guided_decoding`` to what an answer must match. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar, check_size

BACKENDS = ("auto", "llguidance", "guidance", "xgrammar")
"""Names that a request may give of what compiles a constraint: llguidance does, under either of its names, and reads
grammars as xgrammar does, which clients of other engines name."""
_SHOWN = 80
"""Characters of another name that are told."""
_CONSTRAINTS = ("json", "regex", "choice", "grammar")


def read_guided_decoding(options: Any) -> Grammar | None:
    """What the answer must match; None for anything.

    Args:
        options: ``guided_decoding`` of a request's ``sampling_options``; the frontend makes it of ``response_format``,
            ``guided_json`` and its like, and of a tool call that is required.

    Raises:
        InvalidRequest: it is malformed, too long, or asks for something else.
    """
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"guided_decoding={options!r} should be an object")
    said = {key: value for key, value in options.items() if value is not None}
    check_backend(said.pop("backend", None))
    if not said:
        return None
    for key in said:
        if key not in _CONSTRAINTS:
            raise InvalidRequest(
                f"guided_decoding.{key} is not supported; constrain the answer by a JSON schema, a regular expression, "
                "a list of choices or a grammar"
            )
    if len(said) > 1:
        raise InvalidRequest(
            f"guided_decoding has {' and '.join(said)}; an answer is constrained by one of them"
        )
    grammar = _grammar(*said.popitem())
    check_size(grammar)
    return grammar


def check_backend(name: Any) -> None:
    """Refuse to compile a constraint by what is not here.

    Args:
        name: of what shall compile it; None if that is left open.

    Raises:
        InvalidRequest: it is not ours; says which are.
    """
    if name is not None and name not in BACKENDS:
        raise InvalidRequest(
            f"guided_decoding_backend={repr(name)[:_SHOWN]} is not supported; constraints are compiled by llguidance: "
            f"leave it out, or give {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
        )


def _grammar(key: str, value: Any) -> Grammar:
    if key == "json":
        return Grammar.of_schema(value)
    if key == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise InvalidRequest("guided_choice should be a list of texts, and not empty")
        return Grammar("choice", json.dumps(value))
    if not isinstance(value, str):
        raise InvalidRequest(f"guided_{key} should be a text")
    return Grammar("rules" if key == "grammar" else "regex", value)
