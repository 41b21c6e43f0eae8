"""Where HTTP is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.serve.settings import ServiceSettings

DEFAULT_PORT = 8000
HOST_VARIABLE, PORT_VARIABLE = "DYN_HTTP_HOST", "DYN_HTTP_PORT"
"""Dynamo's own, for its frontend."""


def http_address(
    service: Service,
    own: ServiceSettings,
    host: str | None,
    port: int | None,
    variables: Mapping[str, str],
    ports: HeldPorts,
) -> tuple[str, int, str | None]:
    """Host and port of a frontend, and what the user should know about them.

    Args:
        host: what the command line asks for; None leaves it to the configuration, then to the variables, else loopback.
        port: likewise; at last, it is 8000 or the next free one.
        variables: of the launcher's environment.
        ports: holds the port from now on.

    Raises:
        ConfigError: the port that was asked for is in use, or no port; or the host is not this machine's.
    """
    host = host or str(own.flags.get("http_host") or variables.get(HOST_VARIABLE) or "127.0.0.1")
    asked, key = port, "--port"
    if asked is None:
        given, key = variables.get(PORT_VARIABLE), PORT_VARIABLE
        if "http_port" in own.asked and own.flags["http_port"] is not None:
            given, key = own.flags["http_port"], f"{service.name}.http_port"
        if given is not None:
            try:
                asked = int(given)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{key}: {given!r} is not a port number") from error
    found = ports.http(host, asked, key, DEFAULT_PORT)
    moved = asked is None and found != DEFAULT_PORT
    return host, found, f"port {DEFAULT_PORT} is in use, so HTTP is on {found}" if moved else None


def reachable(host: str) -> str:
    """``host`` as a URL of this machine names it."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


def http_scheme(flags: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """What a frontend with these settings speaks: ``https`` if it has a certificate."""
    return "https" if flags.get("tls_cert_path") or variables.get("DYN_TLS_CERT_PATH") else "http"
