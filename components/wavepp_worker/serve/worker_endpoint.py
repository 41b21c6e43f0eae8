"""What workers call the Dynamo endpoint that they serve, by which a frontend's list tells them from others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import COMMON, Service
from wavepp_worker.serve.settings import ServiceSettings

USUAL_ENDPOINT = "generate"
VARIABLE = "DYN_ENDPOINT"


def endpoint_name(service: Service, own: ServiceSettings, environment: Mapping[str, str]) -> str:
    """The last part of ``NAMESPACE.COMPONENT.ENDPOINT``, or the name alone.

    Args:
        environment: of the service's processes.

    Raises:
        ConfigError: it is in another namespace than the graph, whose frontend would never find it.
    """
    text = str(own.flags.get("endpoint") or environment.get(VARIABLE) or USUAL_ENDPOINT)
    *path, name = text.removeprefix("dyn://").split(".")
    namespace = own.flags.get("namespace")
    if len(path) == 2 and namespace is not None and path[0] != namespace:
        raise ConfigError(
            f"{service.name}.endpoint: {text!r} is in the namespace {path[0]!r}, and those who look for it are in "
            f"{namespace!r}; give the name alone, {name}, or set --{COMMON}.namespace={path[0]}"
        )
    return name
