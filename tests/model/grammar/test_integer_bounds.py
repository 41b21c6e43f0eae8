"""Bounds of integers beyond 2**53: settled, and as the compiler of grammars then keeps them."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.integer_bounds import settle_integer_bounds

llguidance = pytest.importorskip("llguidance")

HIGHEST, LOWEST = 2**63 - 1, -(2**63)
HONOURED = LOWEST + 1024
"""The lowest integer that is ever said."""
PLACES = (
    0,
    5,
    2**53,
    10**16,
    10**17,
    10**18 - 128,
    10**18,
    2**60,
    2**63 - 1025,
    2**63 - 1024,
    HIGHEST,
    2**63,
    2**64,
)


@pytest.mark.parametrize(
    ("schema", "then"),
    [
        ({"minimum": LOWEST, "maximum": HIGHEST}, {"minimum": HONOURED, "maximum": HIGHEST}),
        ({"minimum": 0, "maximum": 2**64 - 1}, {"minimum": 0, "maximum": HIGHEST}),
        (
            {"exclusiveMinimum": LOWEST - 1, "exclusiveMaximum": 2**63},
            {"minimum": HONOURED, "maximum": HIGHEST},
        ),
        ({"exclusiveMaximum": 2**53 + 1}, {"maximum": 2**53}),
        ({"minimum": -(2**60) - 1, "exclusiveMinimum": True}, {"minimum": -(2**60)}),
        ({"minimum": -5, "exclusiveMinimum": -(2**60)}, {"minimum": -5}),
        ({"maximum": 1e19, "minimum": 0.5}, {"maximum": HIGHEST, "minimum": 0.5}),
    ],
)
def test_what_generators_of_schemas_write_is_settled(schema: dict[str, Any], then: dict[str, Any]) -> None:
    assert settle_integer_bounds(schema)
    assert schema == then
    assert not settle_integer_bounds(schema)


def allowed(schema: dict[str, Any], value: int) -> bool:
    return all(
        {
            "minimum": value >= bound,
            "maximum": value <= bound,
            "exclusiveMinimum": value > bound,
            "exclusiveMaximum": value < bound,
        }[key]
        for key, bound in schema.items()
        if key != "type"
    )


def test_the_compiler_keeps_what_is_settled(ascii_tokenizer: str) -> None:
    """No integer beyond a bound comes through, and all within do but for those past the ends."""
    tokenizer, draw, compiled = llguidance.LLTokenizer(ascii_tokenizer), random.Random(3), 0
    for _ in range(150):
        schema: dict[str, Any] = {"type": "integer"}
        for key in draw.sample(
            ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), draw.choice((1, 2, 2))
        ):
            schema[key] = draw.choice(PLACES) * draw.choice((1, -1)) + draw.choice((0, 0, 1, -1))
        settled = copy.deepcopy(schema)
        try:
            settle_integer_bounds(settled)
        except InvalidRequest:
            continue
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(settled))
        near = {
            bound + step
            for each in (schema, settled)
            for bound in list(each.values())[1:]
            for step in (-1, 0, 1)
        }
        for value in {*near, 0, LOWEST, HIGHEST}:
            matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
            if matcher.is_error():
                # There is no integer at all, or none of 64 bits.
                assert not allowed(schema, value) or not HONOURED <= value <= HIGHEST, (schema, value)
                continue
            ids = tokenizer.tokenize_str(str(value))
            said = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
            compiled += 1
            if HONOURED <= value <= HIGHEST:
                assert said == allowed(schema, value), (schema, settled, value)
            else:
                assert allowed(schema, value) or not said, (schema, settled, value)
    assert compiled > 300


@pytest.fixture(scope="module")
def ascii_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.support.ascii_model import make_ascii_model

    return (Path(make_ascii_model(tmp_path_factory.mktemp("m") / "a")) / "tokenizer.json").read_text()
