"""What an answer must match, as it travels."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from wavepp_worker.errors import InvalidRequest

MOST_GRAMMAR_BYTES = 65536
"""UTF-8 bytes of a grammar. What one costs to compile, and for each token, grows with them."""


class Grammar(msgspec.Struct, frozen=True):
    """A language that an answer has to be a text of.

    Attributes:
        kind: what ``text`` is: ``json`` a JSON schema, ``regex`` a regular expression in Rust's syntax that the whole
            answer matches, ``choice`` a JSON list of texts of which the answer is one, ``rules`` a grammar as of Lark
            or of llama.cpp (GBNF).
    """

    kind: Literal["json", "regex", "choice", "rules"]
    text: str

    @classmethod
    def of_schema(cls, schema: Any) -> Grammar:
        """The answers that a JSON schema allows.

        Args:
            schema: an object or True, or the JSON text of one.

        Raises:
            InvalidRequest: it is neither.
        """
        try:
            value = json.loads(schema) if isinstance(schema, str) else schema
            if value is True:
                value = {}
            if not isinstance(value, dict):
                raise InvalidRequest(
                    f"a JSON schema is an object, or true, and this one is {str(value)[:40]}; send an object"
                )
            return cls("json", json.dumps(value))
        except RecursionError as error:
            raise InvalidRequest("the JSON schema nests too deeply; send a flatter one") from error
        except ValueError as error:
            raise InvalidRequest(f"the JSON schema is a text that is not JSON: {error}") from error


def check_size(grammar: Grammar) -> None:
    """Refuse a grammar that is too long to be compiled for one request.

    Raises:
        InvalidRequest: it has more than ``MOST_GRAMMAR_BYTES``, or is no valid Unicode.
    """
    try:
        count = len(grammar.text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"what the answer must match is no valid Unicode: {error}") from error
    if count > MOST_GRAMMAR_BYTES:
        raise InvalidRequest(
            f"what the answer must match takes {count} bytes, this deployment takes at most {MOST_GRAMMAR_BYTES}; "
            "send a shorter schema or grammar"
        )
