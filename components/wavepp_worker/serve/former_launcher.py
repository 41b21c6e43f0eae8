"""What Dynamo 0.3's launcher took and this one does not: what to write instead, a sentence each. Pure but for looking
at the environment.

docs/from-dynamo-0.3.md has them all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PAGE = "docs/from-dynamo-0.3.md"
SDK = "dynamo.sdk"
"""The package in which @service and depends were."""
_CONFIG_VARIABLE = "DYN_DEPLOYMENT_CONFIG"
_NO_LIMITS = ("cpu", "memory")
"""Keys of ``ServiceArgs.resources`` that are taken for the sake of its files."""

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "working-dir": "run dynamo serve in that directory, or give the graph as path/to/file.py",
        "target": "there is one launcher, which starts processes of this machine; leave it out",
        "depends": "services find each other by discovery; leave it out, and start one alone with --service-name",
        "enable-local-planner": "leave it out, start python -m dynamo.planner, and follow it with --dynamo-planner",
        "enable-system-app": "every worker answers /health and /metrics; leave it out",
        "system-app-port": "a worker's port for /health is --Service.ServiceArgs.envs.DYN_SYSTEM_PORT=910{replica}",
        "system-app-host": "a worker's address for /health is DYN_SYSTEM_HOST",
        "use-default-health-checks": "every worker answers /health; leave it out",
    }
)
"""Options of ``dynamo serve``: what there is instead."""
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "run": "for a model without a graph there is graphs:agg_wavepp: dynamo serve graphs:agg_wavepp --model DIR",
        "build": "there is nothing to build; dynamo serve takes the graph's file as it is",
        "deploy": "for Kubernetes, run each worker as python -m wavepp_worker in a pod of its own",
        "deployment": "for Kubernetes, run each worker as python -m wavepp_worker in a pod of its own",
        "env": "dynamo --version says what is installed",
    }
)
"""Commands beside ``serve``: what there is instead."""
SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "Processor": "Frontend tokenises now; leave the section out, and give its router as Frontend.router_mode",
        "Router": "Frontend routes now; give it the router's keys, such as router_mode",
        "VllmWorker": "DecodeWorker generates now, or Worker where one does both; give it these keys",
    }
)
"""Services of its graphs: what there is instead."""


def sdk_sentence(place: str) -> str:
    """What is said of a graph that imports the SDK.

    Args:
        place: the file and line that do.
    """
    return (
        f"{place} imports {SDK}, which Dynamo has no longer since 0.4; write each class with @service as a Service of "
        f"a Graph, and what it depends on as the services after it ({PAGE})"
    )


def resource_note(service: str, resources: Mapping[str, Any]) -> str | None:
    """What is said of a service's limits that the launcher of 0.3 did not apply either; None if it has none.

    Args:
        service: its name.
        resources: of its ``ServiceArgs``.
    """
    keys = [f"{service}.ServiceArgs.resources.{key}" for key in _NO_LIMITS if resources.get(key) is not None]
    if not keys:
        return None
    does, them = ("limits", "it") if len(keys) == 1 else ("limit", "them")
    return (
        f"{' and '.join(keys)} {does} nothing: leave {them} out; on how many cores a rank "
        "computes threads says, how much memory KV takes kv_tokens or kv_memory_fraction, and limits of processes are "
        "those of systemd or the container"
    )


def variable_objection() -> str | None:
    """What is wrong with the environment; None if nothing is."""
    if not os.environ.get(_CONFIG_VARIABLE):
        return None
    return (
        f"{_CONFIG_VARIABLE}: held the whole configuration of Dynamo 0.3's launcher, and is not read; write it into a "
        "file and give that as -f, and unset the variable"
    )
