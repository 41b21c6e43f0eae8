"""What a graph is, and how the name of one on the command line is found."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.former_launcher import SDK, sdk_sentence
from wavepp_worker.setting_names import did_you_mean

COMMON = "Common"
"""The section of a configuration whose keys every service may take; no service can have this name."""

GRAPHS = "graphs"
"""The package of the graphs that come with this one, as the command line names it."""

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
        former: keys that have a further name: that to the one they have here.
        replicas: processes, unless ``ServiceArgs.workers`` says otherwise.
        kind: a frontend answers HTTP clients; a worker answers ``/health`` on ``DYN_SYSTEM_PORT``.
        arguments: ``module:Class`` whose ``parse(argv)`` raises ConfigError for flags the process would
            refuse; what it returns may have a ``check(shape)`` that does so for a ``ModelShape``, and a
            ``disk_use(shape, others)`` that tells what it takes of disks. If the class has ``settings()``, the names
            of flags, their variables ``DYN_WAVEPP_...`` count as well. None leaves the flags unchecked.
        unshared: keys whose values no two replicas can share, and what they name: each gets its own of a ``file``, a
            ``directory`` or a ``port``.
        scaled_as: which of the two numbers that Dynamo's planner decides says how many there are of it: that of prefill
            workers, or that of all who decode; None if neither does.
        needs_model: give it ``model``, and ``served_model_name`` if that is among ``common``; by default what
            another service was given, else those of the demo model. A frontend is given ``served_model_name`` in any
            case: all names of what the graph serves.
    """

    name: str
    module: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    common: tuple[str, ...] = PLANES
    former: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    replicas: int = 1
    kind: Literal["frontend", "worker"] = "worker"
    arguments: str | None = None
    unshared: Mapping[str, Literal["file", "directory", "port"]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    needs_model: bool = False
    scaled_as: Literal["prefill", "decode"] | None = None


@dataclass(frozen=True)
class Graph:
    """Services that together answer requests.

    Attributes:
        name: what messages call it.
        services: in the order they stop: those that take requests first, those they depend on last.
        namespace: the Dynamo namespace, unless ``Common.namespace`` says otherwise.
        about: a sentence for people.
        folder: where its file lies, if that is not the working directory; its processes can import from there.

    Raises:
        ConfigError: two services share a name, one is called ``Common``, or there are two frontends.
    """

    name: str
    services: tuple[Service, ...]
    namespace: str = "dynamo"
    about: str = ""
    folder: Path | None = None

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
    named as the module is. The name of its first service stands for a graph as well.
    ``graphs`` is also the package of those that come with this one.

    Raises:
        ConfigError: there is no such module or no such graph in it, or the module fails; names file and line.
    """
    location, _, name = target.partition(":")
    if not location:
        raise ConfigError(f"graph {target}: give it as package.module:name or path/to/file.py")
    known: dict[str, None] = {}
    places = []
    for module in _modules(target, location):
        graphs = _graphs(module)
        graph = graphs.get(name) if name else _only(graphs, location)
        graph = graph or _by_service(target, graphs, location, name)
        if graph is not None:
            return dataclasses.replace(graph, folder=_folder(location))
        known |= {f"{location}:{key}": None for key in sorted(graphs)}
        places.append(str(getattr(module, "__file__", None) or location))
    problem = f"holds no graph called {name!r}" if name else "does not say which graph"
    raise ConfigError(
        f"graph {target}: {' or '.join(dict.fromkeys(places))} {problem}; it has {', '.join(known) or 'none at all'}"
    )


def shipped() -> tuple[Graph, ...]:
    """The graphs that come with this package, or lie beside it in its repository."""
    return tuple(_graphs(next(_modules(GRAPHS, GRAPHS))).values())


def _graphs(module: ModuleType) -> dict[str, Graph]:
    return {key: value for key, value in vars(module).items() if isinstance(value, Graph)}


def _only(graphs: Mapping[str, Graph], location: str) -> Graph | None:
    stem = Path(location).stem if location.endswith(".py") else location.rpartition(".")[2]
    if stem in graphs:
        return graphs[stem]
    different = {id(graph): graph for graph in graphs.values()}
    return next(iter(different.values())) if len(different) == 1 else None


def _by_service(target: str, graphs: Mapping[str, Graph], location: str, name: str) -> Graph | None:
    """The graph of which ``name`` is the first service, ``Frontend`` or ``graph.Frontend``, as Dynamo 0.3 named it.

    Raises:
        ConfigError: it is one of the others, which nobody asks first.
    """
    before, _, last = name.rpartition(".")
    graph = graphs.get(before) if before else _only(graphs, location)
    names = [] if graph is None else [service.name for service in graph.services]
    if last not in names[1:]:
        return graph if names[:1] == [last] else None
    raise ConfigError(
        f"graph {target}: {last} is a service of a graph, which is started from {names[0]}; leave :{name} out, and "
        f"give --service-name {last} to start it alone"
    )


def _modules(target: str, location: str) -> Iterator[ModuleType]:
    """What ``location`` may be; more than one where the user, too, has a package called ``graphs``."""
    if location.endswith(".py"):
        yield _file(target, Path(location))
        return
    working = os.getcwd()
    if working not in sys.path:
        sys.path.insert(0, working)
    candidates = [location]
    if location.partition(".")[0] == GRAPHS:
        candidates.append(f"{__package__.partition('.')[0]}.{location}")
    found = False
    for candidate in candidates:
        module = _imported(target, candidate)
        if module is not None:
            found = True
            yield module
    if not found:
        raise ConfigError(
            f"graph {target}: no module named {location!r}, seen from {working}; give the graph as "
            "package.module:name or path/to/file.py, and run from the directory that holds it; dynamo serve alone "
            "lists the graphs that are always there"
        )


def _imported(target: str, location: str) -> ModuleType | None:
    """The module, or None if there is none of this name."""
    try:
        return importlib.import_module(location)
    except ConfigError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{location}.".startswith(f"{missing}."):
            return None
        raise _failed(target, error) from error


def _file(target: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"graph {target}: there is no file {path.resolve()}")
    # As for a script: what lies beside it can be imported.
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    spec = importlib.util.spec_from_file_location(f"_graph_{path.stem}", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise _failed(target, error) from error
    return module


def _folder(location: str) -> Path | None:
    if not location.endswith(".py"):
        return None
    folder = Path(location).resolve().parent
    return None if folder == Path.cwd() else folder


def _failed(target: str, error: Exception) -> ConfigError:
    """A sentence with the place that fails: the innermost of the user's own code, if there is any."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "importlib" not in frame.filename and frame.filename != __file__
        ]
        last = next(
            (frame for frame in reversed(frames) if _users(frame.filename)), frames[-1] if frames else None
        )
        place = target if last is None else f"{last.filename}, line {last.lineno}"
    if isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith(f"{SDK}."):
        return ConfigError(f"graph {target}: {sdk_sentence(place)}")
    return ConfigError(
        f"graph {target}: {place} fails: {type(error).__name__}: {getattr(error, 'msg', error)}{_fields(error)}"
    )


def _users(file: str) -> bool:
    """Whether a file is neither Python's, an installed package's, nor ours."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    return Path(file).is_file() and not any(
        Path(file).is_relative_to(other) for other in (*installed, Path(__file__).parents[1])
    )


def _fields(error: Exception) -> str:
    """What a Service or a Graph can be given, if something else was."""
    given = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    kind = next((each for each in (Service, Graph) if given and each.__name__ == given[1]), None)
    if given is None or kind is None:
        return ""
    names = [each.name for each in dataclasses.fields(kind)]
    return f"{did_you_mean(given[2], names)}; a {given[1]} has {', '.join(names)}"
