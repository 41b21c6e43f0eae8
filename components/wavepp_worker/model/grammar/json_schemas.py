"""The schemas that a JSON schema is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by names, which may be called like keywords."""
_DATA = ("const", "enum", "default", "example", "examples")
"""Keywords whose values are no schemas."""


def schemas_in(whole: Any) -> Iterator[Schema]:
    """Every schema in one, itself included; what is no keyword is taken for one that holds schemas."""
    left = [whole]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            yield value
            for key, inner in value.items():
                if key in _NAMED and isinstance(inner, dict):
                    left += inner.values()
                elif key not in _DATA:
                    left.append(inner)
