"""What a worker is in Dynamo: the part of its command line that no engine reads."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

from wavepp_worker.dynamo.dump_path import check_dump_path
from wavepp_worker.dynamo.dynamos_flags import add_dynamos_flags
from wavepp_worker.dynamo.endpoint_types import check_endpoint_types
from wavepp_worker.dynamo.flags import Parser, Taken, add_fields, build, take
from wavepp_worker.dynamo.foreign_flags import add_foreign, check_foreign, check_options
from wavepp_worker.dynamo.health_payload import check_health_payload
from wavepp_worker.dynamo.http_paths import check_worker_paths
from wavepp_worker.dynamo.meeting_places import check_meeting_places
from wavepp_worker.dynamo.runtime_variables import check_runtime_variables
from wavepp_worker.dynamo.unused_settings import check_without_effect
from wavepp_worker.dynamo.worker_settings import Role, WorkerSettings
from wavepp_worker.errors import ConfigError

JOBS_ALONE = "-jobs"
"""What is added to the namespace of workers that take jobs alone; their queue is called after it without."""

_OF_PREFILL = "is where workers that prefill hand KV over, and a decode worker only takes it; leave it out"
_TAGS = "structural_tag"
"""What Dynamo 1.6 makes of its flags for structural tags."""
LONGEST_FILE_NAME = 255
"""Bytes that a file system takes."""


@dataclass(frozen=True)
class RuntimeArgs:
    """What Dynamo itself is told.

    Attributes:
        namespace: the Dynamo namespace.
        component: the component; prefill and decode workers must differ in it.
        endpoint: name of the served endpoint.
        served_model_name: the name clients ask for.
        bootstrap_port: port that decode workers claim hand-offs on; 0 picks a free one.
        perf_metrics: whether to serve ``get_perf_metrics``.
        options: every flag of Dynamo's own group, by the names Dynamo uses.
    """

    namespace: str
    component: str
    endpoint: str
    served_model_name: str
    bootstrap_port: int
    perf_metrics: bool
    options: argparse.Namespace


def add_runtime(parser: Parser) -> None:
    """Add the flags; after all others, as Dynamo's own are many."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup

    add_fields(parser, WorkerSettings, "Worker")
    add_foreign(parser)
    add_dynamos_flags(parser, DynamoRuntimeArgGroup())


def take_runtime(
    given: dict[str, Any], role: Role, model_name: str, engine: Taken | None = None
) -> RuntimeArgs:
    """Read what ``add_runtime`` added.

    Args:
        given: values of these flags and of no others, by name; changed.
        role: of the worker.
        model_name: what clients ask for where no name is given.
        engine: what its engine is made of.

    Raises:
        ConfigError: a flag is wrong, does nothing in this role, asks for another, or for what this worker would not
            do; names it.
    """
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeConfig
    from dynamo.common.utils.namespace import get_worker_namespace

    adapters = engine.spell("lora_modules") if engine is not None and engine.get("lora_modules") else None
    check_foreign(given, adapters)
    taken = take(given, WorkerSettings)
    own = build(WorkerSettings, taken, taken.spell)
    if own.disaggregation_mode not in (None, role):
        raise ConfigError(
            f"{taken.spell('disaggregation_mode')}: {own.disaggregation_mode} is not what this module runs, which is "
            f"{role}; start python -m wavepp_worker, which runs any"
        )
    if role == "decode":
        check_without_effect(own, taken, ("bootstrap_port",), _OF_PREFILL)
    options = DynamoRuntimeConfig.from_cli_args(argparse.Namespace(**given))
    check_options(options)
    check_runtime_variables(os.environ)
    check_worker_paths(os.environ)
    check_meeting_places(os.environ, options.discovery_backend, options.event_plane)
    _check_limit(options.engine_request_limit)
    check_health_payload(options.health_check_payload)
    check_dump_path(options.dump_config_to)
    check_endpoint_types(options.endpoint_types)
    try:
        options.validate()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if hasattr(options, _TAGS):
        # Dynamo 1.6 has frontends send them unless told otherwise, and every request with one would be refused.
        setattr(options, _TAGS, None)
    namespace, component, endpoint = given["namespace"], own.component, given["endpoint"]
    if endpoint and ("." in endpoint or endpoint.startswith("dyn://")):
        parts = endpoint.removeprefix("dyn://").split(".")
        if len(parts) != 3 or not all(parts):
            raise ConfigError(
                f"--endpoint: {endpoint!r} should be NAME or dyn://namespace.component.endpoint"
            )
        namespace, component, endpoint = parts[0], component or parts[1], parts[2]
    namespace = get_worker_namespace(namespace)
    component = component or ("prefill" if role == "prefill" else "backend")
    endpoint = endpoint or "generate"
    for flag, name in (("--namespace", namespace), ("--component", component), ("--endpoint", endpoint)):
        _check_name(flag, name)
    if options.discovery_backend == "file":
        _check_entry(namespace, component, endpoint)
    return RuntimeArgs(
        namespace=namespace,
        component=component,
        endpoint=endpoint,
        served_model_name=own.served_model_name or model_name,
        bootstrap_port=own.bootstrap_port,
        perf_metrics=own.perf_metrics,
        options=argparse.Namespace(**vars(options)),
    )


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"--engine-request-limit: should be at least 1, not {limit}")


def _check_name(flag: str, name: str) -> None:
    """Refuse a name of which nothing would be left as the label of a metric, at which Dynamo ends."""
    if name and not any(char.isascii() and char.isalnum() for char in name):
        raise ConfigError(
            f"{flag}: {name!r} has neither a letter from A to Z nor a digit, and a worker's metrics carry its name; "
            "give one that has"
        )


def _check_entry(namespace: str, component: str, endpoint: str) -> None:
    """Refuse names of which discovery could not make a file's; where KV events come from has the longest."""
    entry = f"namespace/{namespace}/component/{component}/endpoint/{endpoint}/topic/kv-events/{0:016x}"
    beyond = _bytes_in_file_name(entry) - LONGEST_FILE_NAME
    if beyond > 0:
        raise ConfigError(
            f"--namespace: {namespace!r}, with component {component!r} and endpoint {endpoint!r}, is {beyond} bytes "
            "too long for the file names of discovery, where a byte that is no letter or digit takes three; "
            "shorten it, or set --discovery-backend=etcd"
        )


def _bytes_in_file_name(key: str) -> int:
    return sum(1 if char.isascii() and char.isalnum() else 3 * len(char.encode()) for char in key)
