"""Command-line flags made from the fields of a pydantic model, so that each key is written down once."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from wavepp_worker.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of leaving the process."""

    def error(self, message: str) -> Any:
        """Raise the complaint.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message} (see --help)")


def flag_of(field: str) -> str:
    """``kv_tokens`` -> ``--kv-tokens``."""
    return "--" + field.replace("_", "-")


def add_fields(parser: argparse.ArgumentParser, model: type[BaseModel], *, prefix: str = "") -> None:
    """Add one flag for each field of ``model``, without defaults: what was not given stays absent.

    Args:
        parser: gains a group named after the model.
        model: a pydantic model; booleans become ``--x/--no-x``, lists are comma-separated.
        prefix: put before every field name, e.g. ``decode_``.
    """
    group = parser.add_argument_group(f"{prefix.replace('_', ' ')}{model.__name__}")
    for name, field in model.model_fields.items():
        options: dict[str, Any] = {
            "dest": prefix + name,
            "default": argparse.SUPPRESS,
            "help": _help(field).replace("%", "%%"),
        }
        if bool in _leaf_types(field.annotation):
            group.add_argument(flag_of(prefix + name), action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag_of(prefix + name), metavar=name.upper(), **options)


def build(model: type[Model], given: Mapping[str, Any]) -> Model:
    """Validate what the command line gave.

    Raises:
        ConfigError: names every flag that is missing or wrong, and why.
    """
    values = {name: _split(model.model_fields[name], value) for name, value in given.items()}
    try:
        return model(**values)
    except ValidationError as error:
        raise ConfigError(_sentences(error.errors())) from error


def _sentences(problems: Iterable[Any]) -> str:
    grouped: dict[str, list[str]] = {}
    for problem in problems:
        location = problem["loc"]
        key = flag_of(str(location[0])) if location else "the configuration"
        if problem["type"] == "missing":
            grouped.setdefault(key, []).append("is required")
        elif problem["type"] == "value_error":
            grouped.setdefault(key, []).append(str(problem["ctx"]["error"]))
        else:
            text = problem["msg"].replace("Input should", "should")
            grouped.setdefault(key, []).append(f"{text}, not {problem['input']!r}")
    return "; ".join(f"{key}: {' or '.join(dict.fromkeys(texts))}" for key, texts in grouped.items())


def _split(field: FieldInfo, value: Any) -> Any:
    if not isinstance(value, str) or tuple not in _origins(field.annotation):
        return value
    parts = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    if len(parts) == 1 and int in _leaf_types(field.annotation, into_tuples=False):
        return parts[0]
    return parts


def _origins(annotation: Any) -> set[Any]:
    origin = getattr(annotation, "__origin__", None)
    found = {origin} if origin is not None else set()
    return found.union(*(_origins(argument) for argument in get_args(annotation)))


def _leaf_types(annotation: Any, *, into_tuples: bool = True) -> set[Any]:
    if getattr(annotation, "__origin__", None) is tuple and not into_tuples:
        return set()
    arguments = get_args(annotation)
    if not arguments:
        return {annotation} if isinstance(annotation, type) else set()
    return set().union(*(_leaf_types(argument, into_tuples=into_tuples) for argument in arguments))


def _help(field: FieldInfo) -> str:
    text = (field.description or "").strip()
    if field.is_required():
        return f"{text} (required)".strip()
    return f"{text} (default: {field.default})".strip()
