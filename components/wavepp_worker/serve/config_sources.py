"""A file and ``--Service.key=value`` overrides, merged key by key. Pure but for reading the file."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import check_names
from wavepp_worker.serve.graph import COMMON, GRAPHS, Graph
from wavepp_worker.serve.yaml_file import load_yaml, same_key

LAUNCHER = "ServiceArgs"
"""The key of a service under which the launcher's own settings are."""
TAKEN = "common-configs"
"""The key of a service that lists which keys of ``Common`` it takes."""
CONFIGS = "configs"
"""The folder of the configurations that come with this package, as the command line names it."""

_OVERRIDE = re.compile(r"--([A-Za-z_]\w*)((?:\.[A-Za-z_][\w-]*)+)(?:=(.*))?", re.DOTALL)
_NEGATIVE = re.compile(r"-\.?\d")
"""Begins a value that is a number, where an option could stand as well."""


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with every leaf of ``over`` put in; mappings merge, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = deep_merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def merge(graph: Graph, *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Configurations put one over the other, every key under the name that it has now.

    Args:
        sources: a section per service and ``Common`` each; the later ones win.

    Raises:
        ConfigError: a source gives a key under two of its names.
    """
    former = {service.name: service.former for service in graph.services}
    former[COMMON] = {old: new for names in former.values() for old, new in names.items()}
    merged: dict[str, Any] = {}
    for source in sources:
        renamed = {name: _renamed(name, section, former.get(name, {})) for name, section in source.items()}
        merged = deep_merge(merged, renamed)
    return merged


def _renamed(service: str, section: Mapping[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    try:
        check_names(section, lambda key: f"{service}.{key}", former)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    renamed = {former.get(key, key): value for key, value in section.items()}
    if isinstance(taken := renamed.get(TAKEN), list):
        renamed[TAKEN] = [former.get(underscored(str(key)), key) for key in taken]
    return renamed


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--Service.key=value`` and ``--Service.key value`` out of a command line.

    Values are JSON, numbers, true, false or null where they look so, else text; environment variables are
    always text. A key without a value is true.

    Returns:
        The rest of the command line, and the overrides as a configuration.

    Raises:
        ConfigError: a key is given twice, in one spelling or in two.
    """
    rest: list[str] = []
    written: dict[tuple[str, ...], str] = {}
    overrides: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        match = _OVERRIDE.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        service, dotted, text = match.groups()
        if text is None:
            is_value = words and (not words[0].startswith("-") or _NEGATIVE.match(words[0]))
            text = words.pop(0) if is_value else "true"
        path = [service, *(underscored(part) for part in dotted[1:].split("."))]
        given = f"--{service}{dotted}"
        if tuple(path) in written:
            before = written[tuple(path)]
            also = "" if before == given else f", as {before}"
            raise ConfigError(f"{given}: is given already{also}; keep one of the two")
        written[tuple(path)] = given
        is_text = path[1:3] == [LAUNCHER, "envs"]
        value: Any = text if is_text else _value(text)
        for part in reversed(path):
            value = {part: value}
        overrides = deep_merge(overrides, value)
    return rest, overrides


def override_key(word: str) -> tuple[str, ...] | None:
    """The section and the keys that a word of the command line names, as written; None if it is no override."""
    match = _OVERRIDE.fullmatch(word)
    return None if match is None else (match[1], *match[2][1:].split("."))


def read_file(path: Path) -> dict[str, Any]:
    """A configuration file, keys as the command line spells them.

    Args:
        path: one that begins with ``configs/`` and is not there is of those that come with this package.

    Raises:
        ConfigError: not there, not YAML, or not sections of keys.
    """
    loaded = load_yaml(config_path(path), path) or {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"-f {path}: should hold a section per service, not {type(loaded).__name__}")
    config: dict[str, Any] = {}
    for name, section in loaded.items():
        if not isinstance(section or {}, dict):
            raise ConfigError(f"-f {path}: {name} should hold keys and values, not {section!r}")
        config[str(name)] = {underscored(str(key)): value for key, value in (section or {}).items()}
    return config


def config_path(path: Path) -> Path:
    """Where a configuration file is: where it says, or among those that come with this package."""
    graphs = importlib.util.find_spec(f"{__package__.partition('.')[0]}.{GRAPHS}")
    if path.parts[:1] != (CONFIGS,) or path.exists() or graphs is None or graphs.origin is None:
        return path
    # Installed as well as in a repository, the two folders lie side by side.
    beside = Path(graphs.origin).parents[1] / path
    return beside if beside.is_file() else path


def underscored(text: str) -> str:
    """A key as the command line spells it: ``kv-tokens`` is ``kv_tokens``."""
    return text if text == TAKEN else same_key(text)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false", "null"):
        return json.loads(text.lower())
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    for kind in (int, float):
        try:
            # A value such as 007 or 1.10 is a name or a version: only what reads back the same is a number.
            if str(kind(text)) == text:
                return kind(text)
        except ValueError:
            continue
    return text
