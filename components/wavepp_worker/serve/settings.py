"""From a graph, a YAML file and overrides to the settings of each service. Pure but for reading the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import check_names
from wavepp_worker.serve.graph import COMMON, Graph, Service

_LAUNCHER = "ServiceArgs"
_TAKEN = "common-configs"
_OVERRIDE = re.compile(r"--([A-Za-z_]\w*)((?:\.[A-Za-z_][\w-]*)+)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class ServiceSettings:
    """What one service is started with.

    Attributes:
        flags: its flags, by key.
        asked: the keys of ``flags`` that the user gave, rather than the graph.
        workers: number of processes.
        envs: environment variables of each process.
        gpus: GPUs for each process.
    """

    flags: Mapping[str, Any]
    asked: frozenset[str]
    workers: int
    envs: Mapping[str, str]
    gpus: int


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
        ConfigError: a source gives a key under its former and its present name.
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
    if isinstance(taken := renamed.get(_TAKEN), list):
        renamed[_TAKEN] = [former.get(_key(str(key)), key) for key in taken]
    return renamed


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--Service.key=value`` and ``--Service.key value`` out of a command line.

    Values are JSON, numbers, true, false or null where they look so, else text; environment variables are
    always text. A key without a value is true.

    Returns:
        The rest of the command line, and the overrides as a configuration.
    """
    rest: list[str] = []
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
            text = words.pop(0) if words and not words[0].startswith("-") else "true"
        path = [service, *(_key(part) for part in dotted[1:].split("."))]
        is_text = path[1:3] == [_LAUNCHER, "envs"]
        value: Any = text if is_text else _value(text)
        for part in reversed(path):
            value = {part: value}
        overrides = deep_merge(overrides, value)
    return rest, overrides


def read_file(path: Path) -> dict[str, Any]:
    """A configuration file, keys as the command line spells them.

    Raises:
        ConfigError: not there, not YAML, or not sections of keys.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"-f {path}: cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"-f {path}: is not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"-f {path}: should hold a section per service, not {type(loaded).__name__}")
    config: dict[str, Any] = {}
    for name, section in loaded.items():
        if not isinstance(section or {}, dict):
            raise ConfigError(f"-f {path}: {name} should hold keys and values, not {section!r}")
        config[str(name)] = {_key(str(key)): value for key, value in (section or {}).items()}
    return config


def settle(graph: Graph, config: Mapping[str, Any], planes: Mapping[str, Any]) -> dict[str, ServiceSettings]:
    """The settings of every service of ``graph``.

    Args:
        config: a section per service and ``Common``, file and overrides merged.
        planes: defaults of the ``Common`` section.

    Raises:
        ConfigError: a section, common key or ServiceArgs key that nothing understands; names it.
    """
    names = [service.name for service in graph.services]
    for name in config:
        if name not in (*names, COMMON):
            raise ConfigError(f"{name}: graph {graph.name} has no such service; it has {', '.join(names)}")
    common = dict(config.get(COMMON, {}))
    for key in common:
        listed = any(key in config.get(name, {}).get(_TAKEN, ()) for name in names)
        if not listed and not any(key in service.common for service in graph.services):
            raise ConfigError(
                f"{COMMON}.{key}: no service of graph {graph.name} takes it; set it as Service.{key}, "
                f"or name it in a service's {_TAKEN}"
            )
    return {
        service.name: _settle_one(service, config.get(service.name, {}), common, planes)
        for service in graph.services
    }


def _settle_one(
    service: Service, section: Mapping[str, Any], common: Mapping[str, Any], planes: Mapping[str, Any]
) -> ServiceSettings:
    own = dict(section)
    launcher = own.pop(_LAUNCHER, None) or {}
    taken = own.pop(_TAKEN, None)
    if taken is not None:
        if not isinstance(taken, list):
            raise ConfigError(f"{service.name}.{_TAKEN}: should be a list of keys, not {taken!r}")
        for key in taken:
            if _key(str(key)) not in common:
                raise ConfigError(f"{service.name}.{_TAKEN}: {COMMON} has no key {key!r}")
    keys = service.common if taken is None else (*map(_key, taken), *planes)
    asked = {**{key: common[key] for key in keys if key in common}, **own}
    agreed = {key: value for key, value in planes.items() if key in service.common}
    where = f"{service.name}.{_LAUNCHER}"
    _known(where, launcher, ("workers", "envs", "resources"))
    resources = launcher.get("resources") or {}
    _known(f"{where}.resources", resources, ("gpu", "cpu", "memory"))
    envs = launcher.get("envs") or {}
    _known(f"{where}.envs", envs, None)
    return ServiceSettings(
        flags=deep_merge({**service.defaults, **agreed}, asked),
        asked=frozenset(asked),
        workers=_count(f"{where}.workers", launcher.get("workers", service.replicas), least=1),
        envs={str(name): _text(value) for name, value in envs.items()},
        gpus=_count(f"{where}.resources.gpu", resources.get("gpu", 0), least=0),
    )


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """Keys and values as a command line: true is ``--key``, false is ``--no-key``, null is nothing."""
    argv: list[str] = []
    for key, value in values.items():
        flag = key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            argv.append(f"--{flag}={json.dumps(value)}")
        elif isinstance(value, (list, tuple)):
            argv.append(f"--{flag}={','.join(map(_text, value))}")
        else:
            argv.append(f"--{flag}={value}")
    return argv


def _key(text: str) -> str:
    return text if text == _TAKEN else text.replace("-", "_")


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


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known(where: str, section: Any, keys: Iterable[str] | None) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: should hold keys and values, not {section!r}")
    for key in section:
        if keys is not None and key not in keys:
            raise ConfigError(f"{where}.{key}: unknown; it may hold {', '.join(keys)}")


def _count(where: str, value: Any, *, least: int) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{where}: should be a whole number of at least {least}, not {value!r}")
    return int(text)
