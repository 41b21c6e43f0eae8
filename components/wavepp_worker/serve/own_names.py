"""The names of what a graph serves, for which its frontend checks and completes requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.serve.agreement import adapter_names
from wavepp_worker.serve.graph import Graph
from wavepp_worker.serve.model_choice import served_name
from wavepp_worker.serve.settings import ServiceSettings


def own_names(graph: Graph, settings: Mapping[str, ServiceSettings]) -> list[str] | None:
    """Of the workers' model, and of their adapters; None if some worker has a name that only itself knows.

    Args:
        settings: of all services, also those that are started elsewhere.
    """
    workers = [service for service in graph.services if service.kind == "worker"]
    if not workers or not all("served_model_name" in service.common for service in workers):
        return None
    names: list[str] = []
    for service in workers:
        flags = settings[service.name].flags
        names += [served_name(flags, graph, settings), *sorted(adapter_names(flags.get("lora_modules")))]
    return list(dict.fromkeys(names))


def alone_note(names: list[str]) -> str:
    """What to say of a frontend whose workers others start."""
    return (
        f"requests for {' and '.join(names)} are checked here, and those for all other models pass as they are; where "
        "workers elsewhere serve under other names, or have adapters, give this launcher their settings, or "
        "--Frontend.served_model_name=NAME,ADAPTER"
    )
