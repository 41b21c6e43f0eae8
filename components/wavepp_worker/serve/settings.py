"""From a graph and its configuration to the settings of each service, and those as flags. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.config_sources import LAUNCHER, TAKEN, deep_merge, underscored
from wavepp_worker.serve.former_launcher import SERVICES
from wavepp_worker.serve.graph import COMMON, Graph, Service
from wavepp_worker.serve.service_variables import check_service_variables
from wavepp_worker.setting_errors import WHOLE_NUMBER
from wavepp_worker.setting_names import did_you_mean

BOUNDS = ("min_workers", "max_workers")
"""Keys of ``ServiceArgs`` that count where Dynamo's planner decides how many processes there are."""
MOST_WORKERS = 8
"""To which a planner may raise the number of processes of a service, unless its settings say otherwise. As many GPUs
are the planner's own limit by default."""


@dataclass(frozen=True)
class ServiceSettings:
    """What one service is started with.

    Attributes:
        flags: its flags, by key.
        asked: the keys of ``flags`` that the user gave, rather than the graph.
        workers: number of processes at the start.
        fewest: to which a planner may lower it.
        most: to which a planner may raise it.
        envs: environment variables of each process.
        gpus: GPUs for each process.
    """

    flags: Mapping[str, Any]
    asked: frozenset[str]
    workers: int
    fewest: int
    most: int
    envs: Mapping[str, str]
    gpus: int


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
            where = ".".join([name, *list(config[name])[:1]])
            meant = f": {SERVICES[name]}" if name in SERVICES else did_you_mean(name, (*names, COMMON))
            raise ConfigError(
                f"{where}: graph {graph.name} has no service {name}{meant}; it has {', '.join(names)}"
            )
    common = dict(config.get(COMMON, {}))
    for key in common:
        listed = any(key in config.get(name, {}).get(TAKEN, ()) for name in names)
        if not listed and not any(key in service.common for service in graph.services):
            known = {name for service in graph.services for name in service.common}
            raise ConfigError(
                f"{COMMON}.{key}: no service of graph {graph.name} takes it{did_you_mean(key, known)} from {COMMON}; "
                f"if a service has it, set it there, as Service.{key}"
            )
    return {
        service.name: _settle_one(service, config.get(service.name, {}), common, planes)
        for service in graph.services
    }


def _settle_one(
    service: Service, section: Mapping[str, Any], common: Mapping[str, Any], planes: Mapping[str, Any]
) -> ServiceSettings:
    own = dict(section)
    launcher = own.pop(LAUNCHER, None) or {}
    taken = own.pop(TAKEN, None)
    if taken is not None:
        if not isinstance(taken, list):
            raise ConfigError(f"{service.name}.{TAKEN}: should be a list of keys, not {taken!r}")
        for key in taken:
            if underscored(str(key)) not in common:
                raise ConfigError(f"{service.name}.{TAKEN}: {COMMON} has no key {key!r}")
    keys = service.common if taken is None else (*map(underscored, taken), *planes)
    asked = {**{key: common[key] for key in keys if key in common}, **own}
    agreed = {key: value for key, value in planes.items() if key in service.common}
    where = f"{service.name}.{LAUNCHER}"
    _known(where, launcher, ("workers", *BOUNDS, "envs", "resources"))
    resources = launcher.get("resources") or {}
    _known(f"{where}.resources", resources, ("gpu", "cpu", "memory"))
    envs = launcher.get("envs") or {}
    _known(f"{where}.envs", envs, None)
    for key in BOUNDS:
        if key in launcher and service.scaled_as is None:
            raise ConfigError(
                f"{where}.{key}: no planner decides how many there are of {service.name}; leave it out"
            )
    workers = _count(f"{where}.workers", launcher.get("workers", service.replicas), least=1)
    fewest = _count(f"{where}.min_workers", launcher.get("min_workers", 1), least=1)
    most = _count(f"{where}.max_workers", launcher.get("max_workers", max(MOST_WORKERS, workers)), least=1)
    for key, value, wrong in (
        ("min_workers", fewest, fewest > workers),
        ("max_workers", most, most < workers),
    ):
        if wrong:
            raise ConfigError(
                f"{where}.{key}: {value} does not go with the {workers} that are started; set {where}.workers as well"
            )
    flags = deep_merge({**service.defaults, **agreed}, asked)
    check_service_variables(service, f"{where}.envs", envs, flags)
    return ServiceSettings(
        flags=flags,
        asked=frozenset(asked),
        workers=workers,
        fewest=fewest,
        most=most,
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


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known(where: str, section: Any, keys: Sequence[str] | None) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: should hold keys and values, not {section!r}")
    for key in section:
        if keys is not None and key not in keys:
            raise ConfigError(
                f"{where}.{key}: unknown{did_you_mean(str(key), keys)}; {where} may hold {', '.join(keys)}"
            )


def _count(where: str, value: Any, *, least: int) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal():
        raise ConfigError(f"{where}: should be {WHOLE_NUMBER}, not {value!r}")
    if int(text) < least:
        raise ConfigError(f"{where}: should be at least {least}, not {text}")
    return int(text)
