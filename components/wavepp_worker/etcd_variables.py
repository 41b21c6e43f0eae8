"""The variables that say where etcd is and who one is there, which are Dynamo's, and whether a server answers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from wavepp_worker.errors import ConfigError
from wavepp_worker.server_reach import needs_server, split_servers

SERVER_VARIABLE = "ETCD_ENDPOINTS"
USER_VARIABLE = "ETCD_AUTH_USERNAME"
PASSWORD_VARIABLE = "ETCD_AUTH_PASSWORD"
DEFAULT_ENDPOINT = "http://localhost:2379"
"""Where Dynamo looks for a server that nobody names."""

_DEFAULT_PORT = 2379


def etcd_urls(environment: Mapping[str, str]) -> list[str]:
    """The servers that a process with this environment asks, each with its scheme."""
    named = split_servers(environment.get(SERVER_VARIABLE) or DEFAULT_ENDPOINT)
    return [url if "://" in url else f"http://{url}" for url in named]


def why_unreached(
    setting: str, environment: Mapping[str, str], *, instead: str | None = "discovery"
) -> str | None:
    """Why Dynamo cannot start with a setting that needs etcd; None if a server takes connections.

    Takes 2 s for each server at most, beside the look-up of its name.

    Args:
        setting: that asks for it, to be named.
        environment: of the process that will connect.
        instead: what else could be chosen; None for nothing.
    """
    return needs_server(
        setting,
        "etcd",
        instead,
        variable=SERVER_VARIABLE,
        environment=environment,
        urls=etcd_urls(environment),
        default_port=_DEFAULT_PORT,
    )


def ssl_context(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """With whose certificates to ask; None for those that everybody trusts.

    Raises:
        ConfigError: a certificate cannot be read; names the variable.
    """
    authority = environment.get("ETCD_AUTH_CA")
    certificate, key = environment.get("ETCD_AUTH_CLIENT_CERT"), environment.get("ETCD_AUTH_CLIENT_KEY")
    if not authority and not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ETCD_AUTH_CA, ETCD_AUTH_CLIENT_CERT or ETCD_AUTH_CLIENT_KEY: no certificate can be read: {error}"
        ) from error
    return context
