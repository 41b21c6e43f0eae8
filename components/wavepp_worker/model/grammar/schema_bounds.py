"""Bounds of numbers in JSON schemas, such that the compiler of grammars lets no number beyond them through.

It keeps bounds as floats, also those of integers; and between n and the next whole number it takes n itself even where
the schema excludes it, as in ``{"exclusiveMinimum": 0, "maximum": 0.5}``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.integer_bounds import (
    EXACT,
    LOWER,
    UPPER,
    beyond_exact,
    is_number,
    settle_integer_bounds,
)
from wavepp_worker.model.grammar.json_schemas import Schema

_PARTS = 1_000_000
"""Of an interval; one is given up beside a whole number that it excludes."""


def settle_bounds(schemas: Sequence[Schema]) -> bool:
    """Put bounds that the compiler honours in the place of those that it would not; returns whether there were any.

    An excluded whole number gives way to a number inside, a millionth of the interval away.

    Args:
        schemas: all schemas of a document; changed.

    Raises:
        InvalidRequest: a bound is none that can be honoured; names it.
    """
    bounded = [each for each in schemas if any(key in each for key in (*LOWER, *UPPER))]
    changes = [settle_integer_bounds(each) for each in bounded if _are_whole(_types(each))]
    for each in bounded:
        _check(each)
    lower, upper = _values(bounded, LOWER), _values(bounded, UPPER)
    # Schemas may be merged: any bound of the document may be the other end of the interval.
    changes += [_narrow(each, LOWER, upper, 1) for each in bounded]
    changes += [_narrow(each, UPPER, lower, -1) for each in bounded]
    return any(changes)


def _check(schema: Mapping[str, Any]) -> None:
    types = _types(schema)
    if _are_whole(types):
        return
    for key in (*LOWER, *UPPER):
        value = schema.get(key)
        # Another schema may say of the same numbers that they are integers; then an excluded 2**53 is not.
        if (
            not is_number(value)
            or abs(value) < EXACT
            or (abs(value) == EXACT and key in ("minimum", "maximum"))
        ):
            continue
        if not ("number" in types and "integer" not in types and isinstance(value, float)):
            raise beyond_exact(key, value)


def _narrow(schema: Schema, keys: tuple[str, str], others: Sequence[float], towards: int) -> bool:
    """Move an excluded whole number towards the nearest of the ``others``, if less than 1 away; says if it did.

    Args:
        others: ascending.
        towards: 1 for those above, -1 for those below.
    """
    inclusive, exclusive = keys
    # Older schemas say of the inclusive bound that it is excluded.
    key = inclusive if schema.get(exclusive) is True else exclusive
    bound = schema.get(key)
    if not is_number(bound) or abs(bound) > EXACT or bound != math.floor(bound):
        return False
    if _are_whole(_types(schema)):
        return False
    at = bisect_right(others, bound) if towards > 0 else bisect_left(others, bound) - 1
    if not (0 <= at < len(others) and abs(others[at] - bound) < 1):
        return False
    moved = bound + (others[at] - bound) / _PARTS
    if moved == bound:
        raise InvalidRequest(
            f"the JSON schema cannot be honoured: {key} {bound} is too near to another bound to be excluded; include "
            "it, or leave it out"
        )
    schema[key] = moved
    return True


def _values(schemas: Sequence[Schema], keys: tuple[str, str]) -> list[float]:
    """Ascending."""
    values = (each.get(key) for each in schemas for key in keys)
    return sorted(value for value in values if is_number(value) and abs(value) <= EXACT)


def _types(schema: Mapping[str, Any]) -> list[Any]:
    types = schema.get("type")
    return types if isinstance(types, list) else [types]


def _are_whole(types: Sequence[Any]) -> bool:
    """Whether numbers of these types are integers."""
    return "integer" in types and "number" not in types
