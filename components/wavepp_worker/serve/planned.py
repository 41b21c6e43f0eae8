"""Which services Dynamo's planner decides the number of, and within what bounds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.etcd_variables import why_unreached
from wavepp_worker.serve.config_sources import LAUNCHER
from wavepp_worker.serve.graph import Graph, Service
from wavepp_worker.serve.replicas import Replicas
from wavepp_worker.serve.settings import BOUNDS

OPTION = "--dynamo-planner"


def planned_services(graph: Graph, services: Iterable[Service]) -> dict[str, str]:
    """Of the services that are started, those that the planner decides the number of, each with which of its numbers.

    Raises:
        ConfigError: there is none, or one number would be that of two.
    """
    found: dict[str, str] = {}
    for service in services:
        if service.scaled_as is None:
            continue
        other = next((name for name, role in found.items() if role == service.scaled_as), None)
        if other is not None:
            raise ConfigError(
                f"{OPTION}: the planner has one number for {service.scaled_as}, and {other} and {service.name} of "
                f"graph {graph.name} would both follow it; give one of the two services scaled_as=None"
            )
        found[service.name] = service.scaled_as
    if not found:
        raise ConfigError(
            f"{OPTION}: nothing that is started of graph {graph.name} follows the planner; a Service says that it does "
            "by scaled_as='prefill' or scaled_as='decode'"
        )
    return found


def unplanned_bounds(services: Iterable[Service], config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each bound of what no planner decides in this run."""
    for service in services:
        launcher = config.get(service.name, {}).get(LAUNCHER) or {}
        for key in BOUNDS:
            if key in launcher:
                yield f"{service.name}.{LAUNCHER}.{key} counts with {OPTION} alone, which is not given"


def check_planner_etcd() -> None:
    """Refuse to start where the planner's decisions could not be read.

    Raises:
        ConfigError: no etcd is reached; names the variable.
    """
    if (reason := why_unreached(OPTION, os.environ, instead=None)) is not None:
        raise ConfigError(reason)


def planner_note(replicas: Mapping[str, Replicas], namespace: str) -> str:
    """What is left to the planner, for people."""
    bounds = " and ".join(
        f"{each.service.name} ({each.own.fewest} to {each.most})" for each in replicas.values()
    )
    return (
        f"Dynamo's planner decides how many there are of {bounds}: start one with environment virtual and namespace "
        f"{namespace}; until it decides, there are as many as are started"
    )
