"""Bounds of settings that are one number, or one per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import core_schema


@dataclass(frozen=True)
class AtLeast:
    """Refuses a number, or any of several, below ``least``, in the words for every other setting's bound."""

    least: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """The field's own schema, and this check behind it."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        for number in numbers:
            if number < self.least:
                raise ValueError(f"should be at least {self.least}, not {number}")
        return value
