"""Dynamo's own groups of flags, whose defaults it takes from variables."""

from __future__ import annotations

import argparse
import os
from typing import Protocol

from wavepp_worker.errors import ConfigError


class _Group(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...


def add_dynamos_flags(parser: argparse.ArgumentParser, group: _Group) -> None:
    """Add a group of Dynamo's.

    Raises:
        ConfigError: a variable has a value that its flag could not have; names the variable.
    """
    try:
        group.add_arguments(parser)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(
            f"{_variable(str(error))}: has a value that Dynamo does not take: {error}"
        ) from error


def _variable(complaint: str) -> str:
    """Which variable a complaint is about: Dynamo says no more than its value."""
    named = [
        name
        for name, value in sorted(os.environ.items())
        if name.startswith("DYN_") and complaint.endswith((repr(value), f" {value}"))
    ]
    return " or ".join(named) or "one of Dynamo's own variables, DYN_..."
