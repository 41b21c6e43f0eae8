"""Whether the processes of a run can find each other the way they are told to."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.settings import ServiceSettings

_OWN_MEMORY = "mem"


def check_discovery(settings: Mapping[str, ServiceSettings]) -> None:
    """Refuse a way by which each process finds itself alone.

    Args:
        settings: of each service, by its name.

    Raises:
        ConfigError: names the key.
    """
    for name, own in settings.items():
        if own.flags.get("discovery_backend") == _OWN_MEMORY:
            raise ConfigError(
                f"{name}.discovery_backend: with {_OWN_MEMORY} a process finds nobody but itself, and the services of "
                "a graph are several; take file, etcd or kubernetes"
            )
