"""The variables that say where NATS servers are and who one is there, which are Dynamo's, and whether one answers."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wavepp_worker.server_reach import needs_server, split_servers

SERVER_VARIABLE = "NATS_SERVER"
USER_VARIABLE = "NATS_AUTH_USERNAME"
PASSWORD_VARIABLE = "NATS_AUTH_PASSWORD"
TOKEN_VARIABLE = "NATS_AUTH_TOKEN"
NKEY_VARIABLE = "NATS_AUTH_NKEY"
CREDENTIALS_VARIABLE = "NATS_AUTH_CREDENTIALS_FILE"
NATS_VARIABLES = (
    SERVER_VARIABLE,
    USER_VARIABLE,
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    NKEY_VARIABLE,
    CREDENTIALS_VARIABLE,
)
DEFAULT_SERVER = "nats://127.0.0.1:4222"
"""Where Dynamo and queues look for a server that nobody names."""

_DEFAULT_PORT = 4222


def nats_environment() -> dict[str, str]:
    """What of this process's environment is about NATS, as it is now."""
    return {name: os.environ[name] for name in NATS_VARIABLES if name in os.environ}


def why_unreached(plane: str, environment: Mapping[str, str]) -> str | None:
    """Why Dynamo cannot start with a plane that is NATS; None if a server takes connections.

    Takes 2 s for each server at most, beside the look-up of its name.

    Args:
        plane: the setting that asks for it, to be named.
        environment: of the process that will connect.
    """
    return needs_server(
        plane,
        "a NATS server",
        "plane",
        variable=SERVER_VARIABLE,
        environment=environment,
        urls=split_servers(environment.get(SERVER_VARIABLE) or DEFAULT_SERVER),
        default_port=_DEFAULT_PORT,
    )
