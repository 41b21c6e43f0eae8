"""Random JSON schemas of what the compiler takes, whose answers end soon."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_WORDS = ("name", "id", "x y", "größe", 'quo"te', "", "a/b", "~")


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """One schema, and sometimes definitions in it that it refers to."""
    schema = _schema(rng, depth)
    if rng.random() < 0.2:
        # A list of a list of a list, which may end at every level; with two in each, it might never.
        nested = {"type": "array", "items": {"$ref": "#/$defs/nested"}, "maxItems": 1}
        return {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/nested"}, "rest": schema},
            "required": ["tree"],
            "additionalProperties": False,
            "$defs": {"nested": nested},
        }
    return schema


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    leaves: list[Callable[[random.Random], dict[str, Any]]] = [
        _integer,
        _number,
        _text,
        _enum,
        _constant,
        _plain,
    ]
    if depth and rng.random() < 0.7:
        return rng.choice((_object, _array, _tuple, _any))(rng, depth - 1)
    return rng.choice(leaves)(rng)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _schema(rng, depth),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    parts = [_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": rng.randint(0, len(parts))}


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _integer(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 10**6)}


def _number(rng: random.Random) -> dict[str, Any]:
    bounds: tuple[dict[str, float], ...] = (
        {},
        {"minimum": -1.5, "exclusiveMaximum": 2},
        {"exclusiveMinimum": 0, "maximum": 0.5},
    )
    return {"type": "number", **rng.choice(bounds)}


def _text(rng: random.Random) -> dict[str, Any]:
    pattern = {"pattern": rng.choice(("^[a-z]{2,5}$", "^(ab|cd)+e$", "^\\d{4}-\\d{2}$", "^[^x]{1,3}$"))}
    return {"type": "string", **(pattern if rng.random() < 0.5 else {"maxLength": rng.randint(0, 12)})}


def _enum(rng: random.Random) -> dict[str, Any]:
    return {
        "enum": rng.sample(("red", "grün", 1, 2.5, None, True, 'a"b\n', [1], {"k": 0}), rng.randint(1, 5))
    }


def _constant(rng: random.Random) -> dict[str, Any]:
    return {"const": rng.choice(("fixed", 7, None, False, {"a": [1, "x"]}))}


def _plain(rng: random.Random) -> dict[str, Any]:
    return {"type": rng.choice(("boolean", "null", ["null", "boolean"]))}
