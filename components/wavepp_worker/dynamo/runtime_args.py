"""What a worker is in Dynamo: the part of its command line that no engine reads."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.errors import ConfigError


@dataclass(frozen=True)
class RuntimeArgs:
    """What Dynamo itself is told.

    Attributes:
        namespace: the Dynamo namespace.
        component: the component; prefill and decode workers must differ in it.
        endpoint: name of the served endpoint.
        served_model_name: the name clients ask for.
        bootstrap_port: port that decode workers claim hand-offs on; 0 picks a free one.
        options: every flag of Dynamo's own group, by the names Dynamo uses.
    """

    namespace: str
    component: str
    endpoint: str
    served_model_name: str
    bootstrap_port: int
    options: argparse.Namespace


def add_runtime(parser: Parser) -> None:
    """Add the flags; after all others, as Dynamo's own are many."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup

    group = parser.add_argument_group("Worker")
    group.add_argument("--component", help="Dynamo component (default: by the worker's role)")
    group.add_argument("--served-model-name", help="name clients ask for (default: the model directory's)")
    group.add_argument(
        "--bootstrap-port",
        metavar="N",
        type=_port,
        default=0,
        help="port of the hand-off's bootstrap server, from 0 to 65535 (default: 0, a free one)",
    )
    DynamoRuntimeArgGroup().add_arguments(parser)


def take_runtime(given: dict[str, Any], default_component: str, model_name: str) -> RuntimeArgs:
    """Read what ``add_runtime`` added.

    Args:
        given: values of these flags and of no others, by name; changed.
        default_component: where none is given.
        model_name: what clients ask for where no name is given.

    Raises:
        ConfigError: ``--endpoint`` is an address of the wrong form.
    """
    from dynamo.common.utils.namespace import get_worker_namespace

    namespace, component, endpoint = given["namespace"], given["component"], given["endpoint"]
    if endpoint and "." in endpoint:
        parts = endpoint.removeprefix("dyn://").split(".")
        if len(parts) != 3 or not all(parts):
            raise ConfigError(
                f"--endpoint: {endpoint!r} should be NAME or dyn://namespace.component.endpoint"
            )
        namespace, component, endpoint = parts[0], component or parts[1], parts[2]
    return RuntimeArgs(
        namespace=get_worker_namespace(namespace),
        component=component or default_component,
        endpoint=endpoint or "generate",
        served_model_name=given.pop("served_model_name") or model_name,
        bootstrap_port=given.pop("bootstrap_port"),
        options=argparse.Namespace(**given),
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number between 0 and 65535")
    return int(text)
