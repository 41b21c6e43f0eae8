"""What processes find in their environment, and what of it a service that is started alone has to be given."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from typing import Any

from wavepp_worker import etcd_variables, nats_variables
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.settings import ServiceSettings

BROKER_VARIABLE = "DYN_ZMQ_BROKER_URL"
"""Where Dynamo finds the event broker."""
STORE_VARIABLE = "DYN_FILE_KV"
"""Where Dynamo's discovery by files keeps them."""
REQUESTS_VARIABLE = "DYN_TCP_RPC_HOST"
"""The address at which processes take requests."""
ANSWERS_VARIABLE = "DYN_TCP_RESPONSE_STREAM_HOST"
"""Where they take answers to their own."""
SYSTEM_HOST_VARIABLE = "DYN_SYSTEM_HOST"
"""The address at which workers answer for their health and metrics."""

LOOPBACK = {
    REQUESTS_VARIABLE: "127.0.0.1",
    # An interface's name, as Dynamo 1.4 takes no address here.
    ANSWERS_VARIABLE: "lo",
    SYSTEM_HOST_VARIABLE: "127.0.0.1",
}
"""Where Dynamo listens; without these it takes the machine's routable address."""

CANARY = {
    "DYN_HEALTH_CHECK_ENABLED": "true",
    # Until its first canary a worker is not ready: each second is one of the start.
    "DYN_CANARY_WAIT_TIME": "1",
    # Dynamo's 3 s are less than a busy worker takes to look at who arrived.
    "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": "30",
}
"""A worker is well if it answers a request of one token; our workers' own answer needs no turn behind others'."""

QUIET = {
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}

LOG_VARIABLE = "DYN_LOG"
DYNAMOS_LOG = "info"

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")

PROBES = (
    "tower_http=off,dynamo_runtime::health_check=warn,dynamo_runtime::system_status_server=info,"
    "dynamo_backend_common::adapter=info,dynamo_backend_common::worker=warn"
)
"""What ``DYN_LOG`` leaves out, whatever else it asks for: health checks, one each second, and the key of a prefill
worker's rooms, which is in what it registers. Who names one of these after it gets its lines all the same."""


def base_environment() -> dict[str, str]:
    """What processes inherit: the launcher's environment over the defaults for a machine of its own."""
    inherited = {**LOOPBACK, **CANARY, **QUIET, **os.environ}
    inherited[LOG_VARIABLE] = f"{PROBES},{os.environ.get(LOG_VARIABLE, DYNAMOS_LOG)}"
    # One port for all would let only the first worker start.
    inherited.pop("DYN_SYSTEM_PORT", None)
    return inherited


def allow_descriptors() -> None:
    """Let processes that are started from here open as many files as the user may: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def loopback_note(planes: Mapping[str, Any]) -> str | None:
    """What to say of processes that others can find, but not reach; None if there is nothing to say.

    Args:
        planes: how the graph's processes find and hear each other.
    """
    requests_at = base_environment()[REQUESTS_VARIABLE]
    if planes["discovery_backend"] in ("file", "mem") or requests_at not in _LOOPBACK_HOSTS:
        return None
    return (
        f"workers of other hosts find these by discovery_backend={planes['discovery_backend']}, but cannot reach them, "
        f"as requests and KV are taken at {requests_at}: for several hosts set {REQUESTS_VARIABLE} to this machine's "
        f"address, and {ANSWERS_VARIABLE} to nothing"
    )


def check_servers(services: Iterable[ServiceSettings], *, own_nats: bool) -> None:
    """Refuse to start processes whose Dynamo could not: it connects at once to the servers of its planes.

    Args:
        services: what is started.
        own_nats: whether the launcher starts a NATS server itself.

    Raises:
        ConfigError: no server is reached; names the key, and the variable that says where servers are.
    """
    found: dict[tuple[str, str | None], str | None] = {}
    for own in services:
        environment = {**os.environ, **own.envs}
        for name, server, of in (
            ("discovery_backend", "etcd", etcd_variables),
            ("request_plane", "nats", nats_variables),
            ("event_plane", "nats", nats_variables),
        ):
            if own.flags.get(name) != server or (own_nats and server == "nats"):
                continue
            asked = (name, environment.get(of.SERVER_VARIABLE))
            if asked not in found:
                found[asked] = of.why_unreached(f"{name}={server}", environment)
            if (reason := found[asked]) is not None:
                raise ConfigError(reason)


def check_reach(planes: Mapping[str, Any], *, alone: bool) -> None:
    """Refuse to start a service alone that could not meet the others anywhere.

    Args:
        planes: how the graph's processes find and hear each other.
        alone: whether one service only is started.

    Raises:
        ConfigError: says what to set.
    """
    if not alone:
        return
    if planes["discovery_backend"] == "file" and STORE_VARIABLE not in os.environ:
        raise ConfigError(
            f"--service-name: the other services could not find this one; set {STORE_VARIABLE} to a directory that "
            "all of them share, or give each --Common.discovery_backend=etcd and ETCD_ENDPOINTS"
        )
    elsewhere = os.environ.get(REQUESTS_VARIABLE, "127.0.0.1") not in _LOOPBACK_HOSTS
    if planes["event_plane"] == "zmq" and BROKER_VARIABLE not in os.environ and not elsewhere:
        raise ConfigError(
            f"--service-name: the services need one event broker; set {BROKER_VARIABLE} for all of them and run "
            "python -m wavepp_worker.serve.broker once, or give each --Common.event_plane=nats"
        )
