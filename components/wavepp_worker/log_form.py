"""The form of Dynamo's log lines, which ours share, as they stand beside them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

JSON_VARIABLE = "DYN_LOGGING_JSONL"
"""Dynamo's: whether its lines are JSON."""
_TRUE = ("1", "true", "on", "yes")


def lines_are_json(environment: Mapping[str, str]) -> bool:
    """Whether each line is to be a JSON object, and not text."""
    return means_yes(environment.get(JSON_VARIABLE, ""))


def means_yes(value: str) -> bool:
    """Whether a variable of this value switches something on, as Dynamo reads it."""
    return value.lower() in _TRUE


def line_time(seconds: float) -> str:
    """A moment, in seconds since 1970, as a line has it: in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
