from __future__ import annotations

import copy
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.json_schemas import schemas_in
from wavepp_worker.model.grammar.schema_bounds import settle_bounds


def settled(schema: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(schema)
    assert settle_bounds(list(schemas_in(changed))) == (changed != schema)
    return changed


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "minimum": 2**63}, "minimum 9223372036854775808 is beyond"),
        ({"type": "integer", "minimum": 10**30, "maximum": 10**31}, "minimum 10000"),
        ({"type": "integer", "minimum": -(2**63) - 2, "maximum": -(2**63) + 2}, "maximum -9223"),
        ({"type": "integer", "minimum": 10**18}, "minimum 1000000000000000000 "),
        ({"type": "integer", "exclusiveMinimum": 2**53}, "exclusiveMinimum 9007199254740992 "),
        ({"exclusiveMinimum": 2**53}, "exclusiveMinimum 9007199254740992 "),
        ({"type": "number", "exclusiveMaximum": -(2**53)}, "exclusiveMaximum -9007199254740992 "),
        ({"type": "integer", "maximum": 2**53 + 1}, "maximum 9007199254740993 "),
        ({"type": "integer", "exclusiveMaximum": 2**63 - 1}, "exclusiveMaximum 9223372036854775807 "),
        ({"type": ["integer", "number"], "minimum": 1e19}, r"minimum 1e\+19 "),
        ({"type": "number", "maximum": 10**17 + 1}, "maximum 100000000000000001 "),
        ({"minimum": -(2**63)}, "minimum -9223372036854775808 "),
        ({"type": "number", "maximum": 10**400}, "maximum 1000"),
        ({"allOf": [{"properties": {"a": {"maximum": 2**60}}}]}, "maximum 1152921504606846976 "),
        (
            {"type": "number", "exclusiveMinimum": 2**51, "maximum": 2**51 + 0.5},
            "exclusiveMinimum 2251799813685248 is too near to another bound to be excluded",
        ),
    ],
)
def test_a_bound_that_cannot_be_kept_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^the JSON schema cannot be honoured: {named}"):
        settled(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        {"type": "integer", "minimum": 10**18, "maximum": 2**63 - 1},
        {"type": "number", "minimum": -1e300, "maximum": 5.748e16},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 0.6},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5},
        {"type": "number", "minimum": 0, "maximum": 0.5, "exclusiveMaximum": False},
        {"properties": {"minimum": {"type": "null"}}, "enum": [{"minimum": 2**63}]},
        {"type": "number", "minimum": "0", "exclusiveMaximum": True},
    ],
)
def test_what_the_compiler_honours_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert settled(schema) == schema


@pytest.mark.parametrize(
    ("schema", "inside"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, {"exclusiveMinimum": 5e-7, "maximum": 0.5}),
        ({"exclusiveMinimum": 0, "maximum": 1e-3}, {"exclusiveMinimum": 1e-9, "maximum": 1e-3}),
        ({"exclusiveMaximum": -5, "minimum": -5.5}, {"exclusiveMaximum": -5.0000005, "minimum": -5.5}),
        (
            {"minimum": 5, "exclusiveMinimum": True, "maximum": 5.5},
            {"minimum": 5.0000005, "exclusiveMinimum": True, "maximum": 5.5},
        ),
        (
            {"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]},
            {"allOf": [{"exclusiveMinimum": 5e-7}, {"maximum": 0.5}]},
        ),
    ],
)
def test_an_excluded_whole_number_gives_way(schema: dict[str, Any], inside: dict[str, Any]) -> None:
    assert settled(schema) == inside
