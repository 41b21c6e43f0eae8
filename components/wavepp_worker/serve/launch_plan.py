"""What to start: every process with its command line and environment, checked before any of them runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.agreement import Serving, check_agreement, serving
from wavepp_worker.serve.config_sources import LAUNCHER, deep_merge
from wavepp_worker.serve.discovery_choice import check_discovery
from wavepp_worker.serve.environment import (
    BROKER_VARIABLE,
    STORE_VARIABLE,
    check_reach,
    check_servers,
    loopback_note,
)
from wavepp_worker.serve.flag_check import check_module
from wavepp_worker.serve.former_launcher import resource_note
from wavepp_worker.serve.graph import COMMON, Graph, Service
from wavepp_worker.serve.http_address import http_address, http_scheme, reachable
from wavepp_worker.serve.model_choice import DEMO_MODEL, add_model, objection_to_messages, takes_messages
from wavepp_worker.serve.own_names import alone_note, own_names
from wavepp_worker.serve.planned import check_planner_etcd, planned_services, planner_note, unplanned_bounds
from wavepp_worker.serve.planner_link import LABEL
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.serve.process import Process
from wavepp_worker.serve.queue_server import (
    QUEUE_SERVICE,
    RUN_DIRECTORY,
    QueueServer,
    choose_queue_server,
    takes_jobs,
    wants_queue_server,
)
from wavepp_worker.serve.replicas import Means, Replicas
from wavepp_worker.serve.settings import ServiceSettings, settle
from wavepp_worker.serve.unused_directories import unused_directories
from wavepp_worker.serve.worker_endpoint import endpoint_name


@dataclass(frozen=True)
class LaunchPlan:
    """All processes of a run.

    Attributes:
        graph: its name.
        processes: in the order they stop.
        config: the merged configuration they come from.
        base_url: where clients ask; None if the frontend runs elsewhere.
        model: the name clients ask for; None if only the workers know.
        chats: whether a message of a user can be tried; else a prompt, as the chat template is missing or refuses it.
        wants_demo: some process needs the demo model.
        discovery: how its processes find each other, by Dynamo's name.
        own_store: file discovery in the run's directory.
        own_broker: the launcher runs the event broker.
        namespace: Dynamo's, of its processes.
        endpoints: what its workers call the Dynamo endpoint that they serve.
        takes_jobs: some service takes jobs from a queue.
        queue: the server that the launcher runs for it; None if there is another.
        replicas: of the services that Dynamo's planner decides the number of, by which of its numbers.
        notes: what the user should know.
        places: what became of words of command lines that were open when they were made.
        held: the ports of its processes; to be closed when they have ended.
    """

    graph: str
    processes: tuple[Process, ...]
    config: Mapping[str, Any]
    base_url: str | None
    model: str | None
    chats: bool
    wants_demo: bool
    discovery: str
    own_store: bool
    own_broker: bool
    namespace: str
    endpoints: frozenset[str]
    takes_jobs: bool
    queue: QueueServer | None
    replicas: Mapping[str, Replicas]
    notes: tuple[str, ...]
    held: HeldPorts
    places: Mapping[str, str] = field(default_factory=dict)

    def with_model(self, directory: Path) -> LaunchPlan:
        """The plan with the demo model's place filled in."""
        return dataclasses.replace(self._filled(DEMO_MODEL, directory), wants_demo=False)

    def in_directory(self, directory: Path) -> LaunchPlan:
        """The plan with the place of the run's directory filled in, in which the queue's server finds its file."""
        return self._filled(RUN_DIRECTORY, directory)

    def further(self, role: str, replica: int) -> Process:
        """A process for one more replica of the service that ``replicas`` has for ``role``.

        Raises:
            ConfigError: as for ``Replicas.make``.
        """
        return self.replicas[role].make(replica).filled(self.places)

    def later_labels(self) -> list[str]:
        """Of the processes that a planner may ask for, and of the one that hears of it."""
        later = [
            f"{each.service.name}:{number}"
            for each in self.replicas.values()
            for number in range(each.own.workers, each.most)
        ]
        return [*later, LABEL] if self.replicas else []

    def _filled(self, place: str, directory: Path) -> LaunchPlan:
        places = {**self.places, place: str(directory)}
        processes = tuple(process.filled(places) for process in self.processes)
        return dataclasses.replace(self, processes=processes, places=places)


@dataclass(frozen=True)
class Options:
    """What the command line says besides the configuration.

    Attributes:
        host: address HTTP is served on; None leaves it to the configuration, else loopback.
        port: likewise; None takes 8000 or the next free one.
        only: start just this service.
        dynamo_planner: have Dynamo's planner decide how many replicas there are.
    """

    host: str | None = None
    port: int | None = None
    only: str | None = None
    dynamo_planner: bool = False


def make_launch_plan(graph: Graph, config: Mapping[str, Any], options: Options) -> LaunchPlan:
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
    check_discovery({service.name: settings[service.name] for service in services})
    check_reach(planes, alone=options.only is not None)

    planned = planned_services(graph, services) if options.dynamo_planner else {}
    notes = list(unplanned_bounds(services, config)) if not options.dynamo_planner else []
    means = Means()
    held = means.held
    replicas: dict[str, Replicas] = {}
    processes: list[Process] = []
    base_url = model = None
    wants_demo, chats, objection = False, True, None
    workers: list[Serving | None] = []
    endpoints: set[str] = set()
    for service in services:
        own = settings[service.name]
        flags = dict(own.flags)
        choice = address = None
        if service.needs_model:
            choice = add_model(service, flags, graph, settings)
            chats = chats and takes_messages(service, flags, choice.shape)
            objection = objection_to_messages(service, flags) or objection
            model = choice.name or model
            wants_demo = wants_demo or flags["model"] == DEMO_MODEL
        if service.kind == "frontend":
            host, port, note = http_address(service, own, options.host, options.port, os.environ, held)
            notes += [note] if note else []
            flags |= {"http_host": host, "http_port": port}
            base_url = f"{http_scheme(flags, {**os.environ, **own.envs})}://{reachable(host)}:{port}"
            address = base_url, port
            if service.needs_model and "served_model_name" not in flags:
                flags["served_model_name"] = names = own_names(graph, settings)
                notes += [alone_note(names)] if names and options.only is not None else []
            if own.workers > 1:
                raise ConfigError(
                    f"{service.name}.ServiceArgs.workers: {own.workers} frontends need as many "
                    "ports; run one here and others with --service-name"
                )
        if "PYTHONPATH" not in own.envs:
            check_module(service)
        if service.kind == "worker":
            endpoints.add(endpoint_name(service, own, {**os.environ, **own.envs}))
        most = own.most if service.name in planned else own.workers
        notes += unused_directories(service, flags, most)
        resources = (config.get(service.name, {}).get(LAUNCHER) or {}).get("resources") or {}
        if (note := resource_note(service.name, resources)) is not None:
            notes.append(note)
        made = Replicas(
            graph,
            service,
            dataclasses.replace(own, flags=flags),
            None if choice is None else choice.shape,
            means,
            most=most,
            address=address,
        )
        processes += [made.make(replica) for replica in range(own.workers)]
        if service.name in planned:
            replicas[planned[service.name]] = made
        if choice is not None:
            workers.append(serving(service, flags, choice))
    queue = None
    chosen = [settings[service.name] for service in services]
    own_nats = wants_queue_server(chosen)
    check_servers(chosen, own_nats=own_nats)
    if options.dynamo_planner:
        check_planner_etcd()
    if own_nats:
        queue = choose_queue_server(held, alone=options.only is not None)
        processes.append(
            Process(
                service=QUEUE_SERVICE,
                replica=0,
                kind="server",
                argv=queue.argv,
                env={},
                port=queue.monitor,
                url=f"http://127.0.0.1:{queue.monitor}",
            )
        )
    check_agreement([each for each in workers if each is not None])
    if not chats:
        notes.append(
            "the model takes no messages, as it has no chat template: ask /v1/completions with a prompt"
        )
    elif objection is not None:
        notes.append(
            f"the model's chat template does not take one message of a user ({objection}), and such a chat is answered "
            "with 400: ask /v1/completions with a prompt, or give the workers another template as custom_jinja_template"
        )
    if (note := loopback_note(planes)) is not None:
        notes.append(note)
    if options.dynamo_planner:
        notes.append(planner_note(replicas, str(planes["namespace"])))
    own_store = planes["discovery_backend"] == "file" and STORE_VARIABLE not in os.environ
    if base_url is None and own_store:
        notes.append(
            "nobody else can find these services: there is no frontend among them, and they meet in files of this run "
            f"alone; set {STORE_VARIABLE} to a directory shared with a frontend elsewhere, or give both "
            f"--{COMMON}.discovery_backend=etcd and ETCD_ENDPOINTS"
        )
    return LaunchPlan(
        graph=graph.name,
        processes=tuple(processes),
        config=_merged(services, settings, planned),
        base_url=base_url,
        model=model,
        chats=chats and objection is None,
        wants_demo=wants_demo,
        discovery=str(planes["discovery_backend"]),
        own_store=own_store,
        own_broker=planes["event_plane"] == "zmq"
        and BROKER_VARIABLE not in os.environ
        and options.only is None,
        namespace=str(planes["namespace"]),
        endpoints=frozenset(endpoints),
        takes_jobs=any(takes_jobs(settings[service.name]) for service in services),
        queue=queue,
        replicas=replicas,
        notes=tuple(notes),
        held=held,
    )


def _chosen(graph: Graph, only: str | None) -> tuple[Service, ...]:
    if only is None:
        return graph.services
    chosen = tuple(service for service in graph.services if service.name == only)
    if not chosen:
        names = ", ".join(service.name for service in graph.services)
        raise ConfigError(f"--service-name: graph {graph.name} has no service {only!r}; it has {names}")
    return chosen


def _merged(
    services: tuple[Service, ...], settings: Mapping[str, ServiceSettings], planned: Container[str]
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for service in services:
        own = settings[service.name]
        launcher: dict[str, Any] = {"workers": own.workers}
        if service.name in planned:
            launcher |= {"min_workers": own.fewest, "max_workers": own.most}
        if own.gpus:
            launcher["resources"] = {"gpu": own.gpus}
        if own.envs:
            launcher["envs"] = dict(own.envs)
        merged[service.name] = {**own.flags, "ServiceArgs": launcher}
    return merged
