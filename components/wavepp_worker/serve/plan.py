"""What to start: every process with its command line and environment, checked before any of them runs."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.gpus import Allotment
from wavepp_worker.serve.graph import COMMON, Graph, Service
from wavepp_worker.serve.ports import free_ports, http_port
from wavepp_worker.serve.settings import ServiceSettings, deep_merge, settle, to_flags

DEMO_MODEL = "<default model>"
"""Stands for the demo model's directory until that exists."""
DEMO_NAME = "SmolLM2-135M-Instruct"

_DEFAULT_PORT = 8000
_BROKER = "DYN_ZMQ_BROKER_URL"
_STORE = "DYN_FILE_KV"

LOOPBACK = {
    "DYN_TCP_RPC_HOST": "127.0.0.1",
    # An interface's name, as Dynamo 1.4 takes no address here.
    "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
    "DYN_SYSTEM_HOST": "127.0.0.1",
}
"""Where Dynamo listens; without these it takes the machine's routable address."""

QUIET = {
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    # Health checks and the comings and goings of connections would drown the rest.
    "DYN_LOG": "info,tower_http=off,dynamo_runtime=warn,dynamo_llm::http::service::service_v2=warn",
    # A worker's discovery entry is gone before it stops, and what it runs is drained after this grace.
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
}


@dataclass(frozen=True)
class Process:
    """One process to run.

    Attributes:
        service: its service's name.
        replica: counts the service's processes from 0.
        kind: as the service's.
        argv: the command line.
        env: environment on top of the launcher's.
        port: of its HTTP server: the frontend's API, or a worker's ``/health``, ``/metrics`` and so on.
        url: of that server, as seen from this machine.
    """

    service: str
    replica: int
    kind: Literal["frontend", "worker"]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    url: str

    @property
    def label(self) -> str:
        return f"{self.service}:{self.replica}"


@dataclass(frozen=True)
class Plan:
    """All processes of a run.

    Attributes:
        graph: its name.
        processes: in the order they stop.
        config: the merged configuration they come from.
        base_url: where clients ask; None if the frontend runs elsewhere.
        model: the name clients ask for; None if only the workers know.
        wants_demo: some process needs the demo model.
        own_store: file discovery in the run's directory.
        own_broker: the launcher runs the event broker.
        notes: what the user should know.
    """

    graph: str
    processes: tuple[Process, ...]
    config: Mapping[str, Any]
    base_url: str | None
    model: str | None
    wants_demo: bool
    own_store: bool
    own_broker: bool
    notes: tuple[str, ...]

    def with_model(self, directory: Path) -> Plan:
        """The plan with the demo model's place filled in."""
        processes = tuple(
            dataclasses.replace(
                process, argv=tuple(word.replace(DEMO_MODEL, str(directory)) for word in process.argv)
            )
            for process in self.processes
        )
        return dataclasses.replace(self, processes=processes, wants_demo=False)


@dataclass(frozen=True)
class Options:
    """What the command line says besides the configuration.

    Attributes:
        host: address HTTP is served on; None leaves it to the configuration, else loopback.
        port: likewise; None takes 8000 or the next free one.
        only: start just this service.
    """

    host: str | None = None
    port: int | None = None
    only: str | None = None


def make_plan(graph: Graph, config: Mapping[str, Any], options: Options) -> Plan:
    """Decide everything that can be decided before something starts.

    Args:
        config: file and overrides merged, a section per service and ``Common``.

    Raises:
        ConfigError: the configuration cannot work; names the key.
    """
    planes = {
        "namespace": os.environ.get("DYN_NAMESPACE", graph.namespace),
        "discovery_backend": os.environ.get("DYN_DISCOVERY_BACKEND", "file"),
        "request_plane": os.environ.get("DYN_REQUEST_PLANE", "tcp"),
        "event_plane": os.environ.get("DYN_EVENT_PLANE", "zmq"),
    }
    planes = deep_merge(
        planes, {key: value for key, value in config.get(COMMON, {}).items() if key in planes}
    )
    settings = settle(graph, config, planes)
    services = _chosen(graph, options.only)
    _check_reach(planes, alone=options.only is not None)

    notes: list[str] = []
    gpus = Allotment()
    processes: list[Process] = []
    base_url = model = None
    wants_demo = False
    for service in services:
        own = settings[service.name]
        flags = dict(own.flags)
        if service.needs_model:
            name = _add_model(service, flags, settings)
            model = name or model
            wants_demo = wants_demo or flags["model"] == DEMO_MODEL
        if service.kind == "frontend":
            host, port = _address(service, own, options, notes)
            flags |= {"http_host": host, "http_port": port}
            base_url = f"http://{_reachable(host)}:{port}"
            ports = [port]
            if own.workers > 1:
                raise ConfigError(
                    f"{service.name}.ServiceArgs.workers: {own.workers} frontends need as many "
                    "ports; run one here and others with --service-name"
                )
        else:
            ports = free_ports(own.workers, taken={process.port for process in processes})
        argv = to_flags(flags)
        _check_flags(service, argv)
        for replica, port in enumerate(ports):
            env = {"DYN_SYSTEM_PORT": str(port)} if service.kind == "worker" else {}
            devices = gpus.take(own.gpus, f"{service.name}.ServiceArgs.resources.gpu")
            if devices:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            processes.append(
                Process(
                    service=service.name,
                    replica=replica,
                    kind=service.kind,
                    argv=(sys.executable, "-m", service.module, *argv),
                    env={**env, **own.envs},
                    port=port,
                    url=base_url if service.kind == "frontend" and base_url else f"http://127.0.0.1:{port}",
                )
            )
    return Plan(
        graph=graph.name,
        processes=tuple(processes),
        config=_merged(services, settings),
        base_url=base_url,
        model=model,
        wants_demo=wants_demo,
        own_store=planes["discovery_backend"] == "file" and _STORE not in os.environ,
        own_broker=planes["event_plane"] == "zmq" and _BROKER not in os.environ and options.only is None,
        notes=tuple(notes),
    )


def base_environment() -> dict[str, str]:
    """What processes inherit: the launcher's environment over the defaults for a machine of its own."""
    inherited = {**LOOPBACK, **QUIET, **os.environ}
    # One port for all would let only the first worker start.
    inherited.pop("DYN_SYSTEM_PORT", None)
    return inherited


def _chosen(graph: Graph, only: str | None) -> tuple[Service, ...]:
    if only is None:
        return graph.services
    chosen = tuple(service for service in graph.services if service.name == only)
    if not chosen:
        names = ", ".join(service.name for service in graph.services)
        raise ConfigError(f"--service-name: graph {graph.name} has no service {only!r}; it has {names}")
    return chosen


def _check_reach(planes: Mapping[str, Any], *, alone: bool) -> None:
    """A service that is started alone must meet the others somewhere."""
    if not alone:
        return
    if planes["discovery_backend"] == "file" and _STORE not in os.environ:
        raise ConfigError(
            f"--service-name: the other services could not find this one; set {_STORE} to a directory that "
            "all of them share, or give each --Common.discovery_backend=etcd and ETCD_ENDPOINTS"
        )
    elsewhere = os.environ.get("DYN_TCP_RPC_HOST", "127.0.0.1") not in ("127.0.0.1", "localhost", "::1")
    if planes["event_plane"] == "zmq" and _BROKER not in os.environ and not elsewhere:
        raise ConfigError(
            f"--service-name: the services need one event broker; set {_BROKER} for all of them and run "
            "python -m wavepp_worker.serve.broker once, or give each --Common.event_plane=nats"
        )


def _add_model(
    service: Service, flags: dict[str, Any], settings: Mapping[str, ServiceSettings]
) -> str | None:
    """Settle ``model`` and, where the service takes it, ``served_model_name``; returns the latter."""

    def given(key: str) -> Any:
        return next((own.flags[key] for own in settings.values() if own.flags.get(key) is not None), None)

    model = flags.get("model") or given("model")
    if model is None:
        flags["model"], name = DEMO_MODEL, DEMO_NAME
    else:
        directory = Path(str(model)).expanduser().resolve()
        if not (directory / "config.json").is_file():
            what = "holds no config.json" if directory.is_dir() else "is no directory"
            raise ConfigError(
                f"{service.name}.model: {directory} {what}; give a Hugging Face model directory, "
                f"or leave it out for {DEMO_NAME}"
            )
        flags["model"], name = directory, directory.name
    if "served_model_name" not in service.common:
        return None
    if flags.get("served_model_name") is None:
        flags["served_model_name"] = given("served_model_name") or name
    return str(flags["served_model_name"])


def _address(service: Service, own: ServiceSettings, options: Options, notes: list[str]) -> tuple[str, int]:
    host = options.host or str(own.flags.get("http_host") or "127.0.0.1")
    asked, key = options.port, "--port"
    if asked is None and "http_port" in own.asked and own.flags["http_port"] is not None:
        key = f"{service.name}.http_port"
        try:
            asked = int(own.flags["http_port"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}: {own.flags['http_port']!r} is not a port number") from error
    port = http_port(host, asked, key, _DEFAULT_PORT)
    if asked is None and port != _DEFAULT_PORT:
        notes.append(f"port {_DEFAULT_PORT} is in use, so HTTP is on {port}")
    return host, port


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _check_flags(service: Service, argv: list[str]) -> None:
    if service.arguments is None:
        return
    module, _, name = service.arguments.partition(":")
    try:
        parser = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{service.name}: {module} cannot be imported: {error}") from error
    try:
        parser.parse(argv)
    except ConfigError as error:
        raise ConfigError(_as_keys(service, str(error))) from error


def _as_keys(service: Service, message: str) -> str:
    """A complaint about ``--kv-tokens`` as one about ``Service.kv_tokens``, which is what the user wrote."""
    message = re.sub(
        r"--([a-z][a-z0-9-]*)",
        lambda match: f"{service.name}.{match[1].replace('-', '_')}",
        message.removesuffix(" (see --help)"),
    )
    unknown = re.fullmatch(r"unrecognized arguments: (.*)", message)
    if unknown:
        keys = ", ".join(word.partition("=")[0] for word in unknown[1].split() if "." in word)
        message = f"{keys}: unknown; python -m {service.module} --help lists the keys, as flags"
    return message if message.startswith(f"{service.name}.") else f"{service.name}: {message}"


def _merged(services: tuple[Service, ...], settings: Mapping[str, ServiceSettings]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for service in services:
        own = settings[service.name]
        launcher: dict[str, Any] = {"workers": own.workers}
        if own.gpus:
            launcher["resources"] = {"gpu": own.gpus}
        if own.envs:
            launcher["envs"] = dict(own.envs)
        merged[service.name] = {**own.flags, "ServiceArgs": launcher}
    return merged
