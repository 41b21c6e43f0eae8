"""Ports of workers: where they answer ``/health``, and those that their flags name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.ports import LAST_OF_DYNAMO, HeldPorts
from wavepp_worker.serve.replica_values import PLACE, replica_values
from wavepp_worker.serve.settings import ServiceSettings

VARIABLE = "DYN_SYSTEM_PORT"


def worker_port(service: Service, own: ServiceSettings, replica: int, most: int, ports: HeldPorts) -> int:
    """A port for one replica: the one its environment is configured with, else a free one.

    Args:
        replica: its number, from 0.
        most: replicas that there may be.
        ports: of the run; holds the replica's from now on.

    Raises:
        ConfigError: a port that was asked for is none, in use, or several replicas' at once.
    """
    if VARIABLE not in own.envs:
        return ports.choose(1)[0]
    where = f"{service.name}.ServiceArgs.envs.{VARIABLE}"
    text = replica_values(service, own.envs, replica, most)[VARIABLE]
    if not text.isdecimal() or not 1 <= int(text) <= LAST_OF_DYNAMO:
        raise ConfigError(f"{where}: {text!r} is not a port number between 1 and {LAST_OF_DYNAMO}")
    taken = int(text) in ports
    if not taken and not ports.hold("127.0.0.1", int(text)):
        raise ConfigError(
            f"{where}: port {text} is in use; choose another, or leave it out to get a free one"
        )
    if taken or (most > 1 and PLACE not in own.envs[VARIABLE]):
        raise ConfigError(
            f"{where}: {text} is the port of several processes; write {PLACE} in it to give each replica its own"
        )
    return int(text)


def check_flag_ports(service: Service, flags: Mapping[str, Any], ports: HeldPorts) -> None:
    """Refuse a port that one replica's flags name and cannot have.

    Args:
        flags: the replica's own, by key.
        ports: of the run; holds those of the flags from now on.

    Raises:
        ConfigError: it is none, in use, or another process's of this run; names the key.
    """
    for key in (key for key, kind in service.unshared.items() if kind == "port"):
        where, text = f"{service.name}.{key}", str(flags.get(key) or 0)
        if not text.isdecimal() or int(text) > 65535:
            raise ConfigError(f"{where}: {text!r} is not a port number between 0 and 65535")
        port = int(text)
        if port == 0:
            continue
        if port in ports:
            raise ConfigError(
                f"{where}: {port} is the port of several processes; leave it out to get a free one, or write {PLACE} "
                "in it to give each replica its own"
            )
        host = str(flags.get("host") or "127.0.0.1")
        if not ports.hold(host, port, host_key=f"{service.name}.host", port_key=where):
            raise ConfigError(
                f"{where}: port {port} of {host} is in use; choose another, or leave it out to get a free one"
            )
