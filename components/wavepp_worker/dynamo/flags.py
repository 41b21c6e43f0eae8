"""Command-line flags made from the fields of a pydantic model, so that each key is written down once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import Settings, check_names, former_name, further_names, present_name
from wavepp_worker.setting_bounds import AtLeast
from wavepp_worker.setting_errors import PER_RANK, WHOLE_NUMBER
from wavepp_worker.setting_names import SEE_HELP, VARIABLES, did_you_mean, flag_of, variable_of

Model = TypeVar("Model", bound=Settings)

SHORT_FLAGS = {"-pp": "--pp", "-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size"}
"""What vLLM has short flags for."""


class Taken(dict[str, Any]):
    """Settings by the names that were used for them.

    Attributes:
        written: how each was given: as which flag, or in which variable.
    """

    def __init__(self, values: Mapping[str, Any], written: Mapping[str, str], prefix: str = "") -> None:
        super().__init__(values)
        self.written = dict(written)
        self._prefix = prefix

    def spell(self, name: str) -> str:
        """How a setting was written; as a flag, if it was not given."""
        return self.written.get(name, flag_of(self._prefix + name))


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of leaving the process, and says what a misspelt flag may have meant.

    Attributes:
        others: flags that this one lacks and other workers have, and what to say of each.
    """

    others: Mapping[str, str] = MappingProxyType({})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line.

        Raises:
            ConfigError: a flag is unknown or wrong; the message begins with it.
        """
        words = sys.argv[1:] if args is None else args
        raw = next((word for word in words if word.startswith("--trtllm.")), None)
        if raw is not None:
            raise ConfigError(
                f"{raw.partition('=')[0]}: settings of another engine mean nothing to this one{SEE_HELP}"
            )
        given, rest = self.parse_known_args(list(map(self._as_registered, words)), namespace)
        if rest:
            # What follows an unknown flag is its value.
            flags = [word for word in rest if word.startswith("-")] if rest[0].startswith("-") else rest
            raise ConfigError("; ".join(self._unknown(word.partition("=")[0]) for word in flags) + SEE_HELP)
        return given

    def flags(self) -> list[str]:
        """All that it knows, as they are written."""
        return list(self._option_string_actions)

    def flag_for(self, name: str) -> str:
        """The flag whose value is kept under a name; the name itself if there is none."""
        return next((each.option_strings[0] for each in self._actions if each.dest == name), name)

    def _as_registered(self, word: str) -> str:
        """A word with its flag as it is registered here: vLLM knows short ones, and takes ``_`` for ``-``."""
        flag, equals, value = word.partition("=")
        dashed = SHORT_FLAGS.get(flag, flag.replace("_", "-"))
        known = flag.startswith("-") and dashed in self._option_string_actions
        return f"{dashed}{equals}{value}" if known else word

    def error(self, message: str) -> Any:
        """Raise the complaint.

        Raises:
            ConfigError: always.
        """
        flag, _, said = message.removeprefix("argument ").partition(": ")
        if said == "expected one argument":
            action = next(
                each for each in self._actions if flag in ("/".join(each.option_strings), each.dest)
            )
            kind = str(action.metavar or action.dest.upper())
            whole = {"N": WHOLE_NUMBER, "N[,N...]": WHOLE_NUMBER + PER_RANK}
            message = f"{flag}: needs a value, {whole.get(kind, kind)}"
        raise ConfigError(message.removeprefix("argument ") + SEE_HELP)

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is no flag, and belongs to none"
        if (said := self.others.get(word.replace("_", "-"))) is not None:
            return f"{word}: {said}"
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return (
            f"{word}: unknown{did_you_mean(word, (flag for each in shown for flag in each.option_strings))}"
        )


def add_fields(
    parser: argparse.ArgumentParser,
    model: type[BaseModel],
    title: str,
    *,
    prefix: str = "",
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add one flag for each field of ``model``, without defaults: what was not given stays absent.

    A field's further names are flags as well, which the help shows only beside the one that it has here.

    Args:
        parser: gains a group.
        title: of the group.
        model: a pydantic model; booleans become ``--x/--no-x``, lists are comma-separated.
        prefix: put before every field name, e.g. ``decode_``.
        defaults: what the help says of fields that are something else here by default.
    """
    group = parser.add_argument_group(title)
    for name, field in model.model_fields.items():
        options: dict[str, Any] = {
            "dest": prefix + name,
            "default": argparse.SUPPRESS,
            "help": _help(
                field, list(_further_flags(name, prefix)), defaults.get(name, field.default)
            ).replace("%", "%%"),
        }
        if bool in _leaf_types(field.annotation):
            group.add_argument(flag_of(prefix + name), action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag_of(prefix + name), metavar=_metavar(field), **options)
        absent = argparse.SUPPRESS
        for other in further_names(name):
            group.add_argument(flag_of(prefix + other), dest=prefix + other, default=absent, help=absent)


def all_names(model: type[BaseModel]) -> list[str]:
    """Every name that a field of ``model`` may be given by."""
    return [name for field in model.model_fields for name in (field, *further_names(field))]


def take(given: dict[str, Any], model: type[BaseModel], *, prefix: str = "") -> Taken:
    """Take what ``add_fields`` added out of ``given``, without the prefix, under the names that were used.

    What no flag gives is taken from its environment variable, if that is set and not empty.

    Raises:
        ConfigError: a setting was given under two of its names.
    """
    names = all_names(model)
    flags = {name: given.pop(prefix + name) for name in names if prefix + name in given}
    settled = set(map(present_name, flags))
    variables = {name: variable_of(prefix + name) for name in names if present_name(name) not in settled}
    set_ones = {name: os.environ[each] for name, each in variables.items() if os.environ.get(each)}
    written = {name: flag_of(prefix + name) for name in flags} | {name: variables[name] for name in set_ones}
    taken = Taken(flags | set_ones, written, prefix)
    try:
        check_names(taken, taken.spell)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return taken


def check_variables(known: Iterable[str]) -> None:
    """Refuse variables that would be a setting's but for their spelling.

    Args:
        known: the settings of all workers.

    Raises:
        ConfigError: there is one that no worker has; names it.
    """
    variables = set(map(variable_of, known))
    for name in sorted(os.environ):
        if name.startswith(VARIABLES) and name not in variables:
            raise ConfigError(f"{name}: unknown{did_you_mean(name, variables)}; no worker has such a setting")


def build(model: type[Model], given: Mapping[str, Any], spell: Callable[[str], str]) -> Model:
    """Validate what command line and environment gave.

    Args:
        given: what ``take`` took, or several of those put together.
        spell: how a field was written.

    Raises:
        ConfigError: names every flag that is missing or wrong, and why.
    """
    values = {name: _split(model.model_fields[present_name(name)], value) for name, value in given.items()}
    return model.spelt(values, spell)


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


def _metavar(field: FieldInfo) -> str:
    """What a value looks like: one of some words, a number, numbers."""
    leaves = _leaf_types(field.annotation)
    words = _literals(field.annotation)
    if words:
        return "{" + ",".join(words) + "}"
    share = any(isinstance(bound, Le) and bound.le == 1 for bound in field.metadata)
    one = (
        "N"
        if int in leaves
        else "FRACTION"
        if share
        else "SECONDS"
        if float in leaves
        else "PATH"
        if Path in leaves
        else "NAME"
    )
    if tuple not in _origins(field.annotation):
        return one
    if int in _leaf_types(field.annotation, into_tuples=False):
        return f"{one}[,{one}...]"
    size = _fixed_size(field.annotation)
    return f"{one},{one},..." if size is None else ",".join([one] * size)


def _fixed_size(annotation: Any) -> int | None:
    """How many values a tuple has; None if any number."""
    if get_origin(annotation) is tuple:
        return None if Ellipsis in get_args(annotation) else len(get_args(annotation))
    sizes = (_fixed_size(argument) for argument in get_args(annotation))
    return next((size for size in sizes if size is not None), None)


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for argument in get_args(annotation) for word in _literals(argument)]


def _further_flags(name: str, prefix: str) -> Iterable[str]:
    former = former_name(name)
    for other in further_names(name):
        yield ("formerly " if other == former else "also ") + flag_of(prefix + other)


def _help(field: FieldInfo, further: list[str], default: Any) -> str:
    text = (field.description or "").replace("``", "").replace("\n", " ").strip()
    notes = [f"at least {bound.ge}" for bound in field.metadata if isinstance(bound, Ge)]
    notes += [f"at least {bound.least}" for bound in field.metadata if isinstance(bound, AtLeast)]
    notes += [f"above {bound.gt}" for bound in field.metadata if isinstance(bound, Gt)]
    if default is PydanticUndefined:
        notes.append("required")
    elif default is not None:
        notes.append(f"default: {default}")
    elif "default" not in text:
        notes.append("default: none")
    notes += further
    return f"{text} ({'; '.join(notes)})".strip() if notes else text
