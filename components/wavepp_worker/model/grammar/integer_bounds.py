"""Bounds of integers in JSON schemas beyond 2**53, where the compiler of grammars, which keeps them as floats, errs.

It is exact where a float is and the bound is included, up to the ends of 64 bits. Beyond the last that it honours on
either side a bound gives way to that one: answers are inside, but for a few integers at the end that are never said.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.json_schemas import Schema

EXACT = 2**53
"""Up to here floats have every whole number."""
LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")
_HIGHEST = 2**63 - 1
"""The compiler makes this of the float above it."""
_LOWEST = -(2**63) + 1024
"""The float after the lowest integer of 64 bits, at which the compiler fails."""
_FAR = 10**18
"""From here on the compiler takes no bound that leaves only what is farther from 0, unless there is an end to it."""


def settle_integer_bounds(schema: Schema) -> bool:
    """Put bounds that the compiler honours in the place of those that it would not; returns whether there were any.

    Args:
        schema: of integers alone; changed.

    Raises:
        InvalidRequest: a bound is none that can be honoured; names it.
    """
    before = dict(schema)
    closed = all(any(is_number(schema.get(key)) for key in side) for side in (LOWER, UPPER))
    _settle(schema, *LOWER, 1, closed)
    _settle(schema, *UPPER, -1, closed)
    return schema != before


def beyond_exact(key: str, value: float) -> InvalidRequest:
    """What to raise where a bound cannot be honoured."""
    return InvalidRequest(
        f"the JSON schema cannot be honoured: {key} {str(value)[:40]} is beyond 2**53, up to which bounds are "
        "exact; give one that is nearer to 0, or leave it out"
    )


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a bound is a number that can be compared."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _settle(schema: Schema, inclusive: str, exclusive: str, inwards: int, closed: bool) -> None:
    given = [key for key in (inclusive, exclusive) if is_number(schema.get(key))]
    if all(abs(schema[key]) < EXACT for key in given):
        return
    bounds = []
    for key in given:
        value = schema[key]
        bound = math.ceil(value) if inwards > 0 else math.floor(value)
        # Older schemas say of the inclusive bound that it is excluded.
        if bound == value and (key == exclusive or schema.get(exclusive) is True):
            bound += inwards
        bounds.append((bound * inwards, key))
    bound, key = max(bounds)
    honoured = _honoured(bound * inwards, inwards, closed)
    if honoured is None:
        raise beyond_exact(key, schema[key])
    schema.pop(exclusive, None)
    schema[inclusive] = honoured


def _honoured(bound: int, inwards: int, closed: bool) -> int | None:
    """A bound as the compiler honours it; None if it does not.

    Args:
        inwards: 1 for a lower one, -1 for an upper one.
        closed: whether there is a bound on the other side.
    """
    if inwards > 0 and bound <= _LOWEST:
        return _LOWEST
    if inwards < 0 and bound >= _HIGHEST:
        return _HIGHEST
    near = bound * inwards <= (-_LOWEST if closed else _FAR - 1)
    return bound if near and int(float(bound)) == bound else None
