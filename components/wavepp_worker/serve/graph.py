"""What a graph is, and how the name of one on the command line is found."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from wavepp_worker.errors import ConfigError

COMMON = "Common"
"""The section of a configuration whose keys every service may take; no service can have this name."""

PLANES = ("namespace", "discovery_backend", "request_plane", "event_plane")
"""What the processes of a graph must agree on to find and hear each other."""


@dataclass(frozen=True)
class Service:
    """One kind of process.

    Attributes:
        name: section of the configuration, and the prefix of its lines in the log.
        module: what ``python -m`` runs.
        defaults: flags it gets unless configured otherwise, by key (``kv_tokens`` is ``--kv-tokens``).
        common: keys of the ``Common`` section it understands.
        former: keys that are called otherwise now: former name to present name.
        replicas: processes, unless ``ServiceArgs.workers`` says otherwise.
        kind: a frontend answers HTTP clients; a worker answers ``/health`` on ``DYN_SYSTEM_PORT``.
        arguments: ``module:Class`` whose ``parse(argv)`` raises ConfigError for flags the process would
            refuse; None leaves the flags unchecked.
        needs_model: give it ``model``, and ``served_model_name`` if that is among ``common``; by default what
            another service was given, else those of the demo model.
    """

    name: str
    module: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    common: tuple[str, ...] = PLANES
    former: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    replicas: int = 1
    kind: Literal["frontend", "worker"] = "worker"
    arguments: str | None = None
    needs_model: bool = False


@dataclass(frozen=True)
class Graph:
    """Services that together answer requests.

    Attributes:
        name: what messages call it.
        services: in the order they stop: those that take requests first, those they depend on last.
        namespace: the Dynamo namespace, unless ``Common.namespace`` says otherwise.

    Raises:
        ConfigError: two services share a name, one is called ``Common``, or there are two frontends.
    """

    name: str
    services: tuple[Service, ...]
    namespace: str = "dynamo"

    def __post_init__(self) -> None:
        names = [service.name for service in self.services]
        if not names or len(set(names)) != len(names) or COMMON in names:
            raise ConfigError(
                f"graph {self.name}: services are {', '.join(names) or 'missing'}; "
                f"each needs a name of its own other than {COMMON!r}"
            )
        if sum(service.kind == "frontend" for service in self.services) > 1:
            raise ConfigError(f"graph {self.name}: only one of its services can be a frontend")


def resolve(target: str) -> Graph:
    """Find a graph: ``package.module:name``, ``package.module`` or ``path/to/file.py[:name]``.

    The working directory is searched first. Without a name, the module must hold one graph, or one that is
    named as the module is.

    Raises:
        ConfigError: there is no such module, or no such graph in it.
    """
    location, _, name = target.partition(":")
    module = _module(target, location)
    if name:
        found = getattr(module, name, None)
        if isinstance(found, Graph):
            return found
    graphs = {key: value for key, value in vars(module).items() if isinstance(value, Graph)}
    if not name:
        stem = Path(location).stem if location.endswith(".py") else location.rpartition(".")[2]
        if stem in graphs:
            return graphs[stem]
        if len(set(map(id, graphs.values()))) == 1:
            return next(iter(graphs.values()))
    known = ", ".join(f"{location}:{key}" for key in sorted(graphs))
    problem = f"holds no graph called {name!r}" if name else "does not say which graph"
    raise ConfigError(f"graph {target}: {location} {problem}; it has {known or 'none at all'}")


def _module(target: str, location: str) -> ModuleType:
    working = os.getcwd()
    if working not in sys.path:
        sys.path.insert(0, working)
    try:
        if not location.endswith(".py"):
            return importlib.import_module(location)
        path = Path(location)
        if not path.is_file():
            raise ConfigError(f"graph {target}: there is no file {path.resolve()}")
        spec = importlib.util.spec_from_file_location(f"_graph_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"graph {target}: no module named {error.name!r}, seen from {working}; give the graph as "
            "package.module:name or path/to/file.py, and run from the directory that holds it"
        ) from error
    except (ImportError, SyntaxError, ValueError) as error:
        raise ConfigError(f"graph {target}: {location} cannot be imported: {error}") from error
