"""The variables that say where NATS servers are and who one is there, which are Dynamo's, and whether one answers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

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
_ANSWER_SECONDS = 2.0


def nats_environment() -> dict[str, str]:
    """What of this process's environment is about NATS, as it is now."""
    return {name: os.environ[name] for name in NATS_VARIABLES if name in os.environ}


def split_servers(text: str) -> list[str]:
    """URLs with commas between."""
    return [url.strip() for url in text.split(",") if url.strip()]


def without_password(url: str) -> str:
    """A URL to be shown."""
    return re.sub(r"//[^/@]*@", "//", url)


def why_unreached(plane: str, environment: Mapping[str, str]) -> str | None:
    """Why Dynamo cannot start with a plane that is NATS; None if a server takes connections.

    Takes 2 s for each server at most, beside the look-up of its name.

    Args:
        plane: the setting that asks for it, to be named.
        environment: of the process that will connect.
    """
    text = environment.get(SERVER_VARIABLE) or DEFAULT_SERVER
    reasons = []
    for url in split_servers(text):
        try:
            place = urlsplit(url if "://" in url else f"nats://{url}")
            address = place.hostname or "", place.port or _DEFAULT_PORT
            socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
            return None
        except (OSError, ValueError) as error:
            reasons.append(f"{without_password(url)}: {error}")
    given = "" if environment.get(SERVER_VARIABLE) else ", which is not set"
    return (
        f"{plane} needs a NATS server, and none is reached by {SERVER_VARIABLE}{given} ({'; '.join(reasons)}); "
        f"start one, name it in {SERVER_VARIABLE}, or take another plane"
    )
