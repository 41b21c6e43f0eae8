"""Whether a server takes connections, which Dynamo's runtime needs at once, and tries ever more rarely."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_ANSWER_SECONDS = 2.0


def split_servers(text: str) -> list[str]:
    """URLs with commas between."""
    return [url.strip() for url in text.split(",") if url.strip()]


def without_password(url: str) -> str:
    """A URL to be shown."""
    return re.sub(r"//[^/@]*@", "//", url)


def failures(urls: Iterable[str], default_port: int) -> str | None:
    """Why none of several servers takes connections; None if one does.

    Takes 2 s for each server at most, beside the look-up of its name.

    Args:
        urls: of servers, with or without a scheme.
        default_port: of those that name none.
    """
    reasons = []
    for url in urls:
        try:
            place = urlsplit(url if "://" in url else f"//{url}")
            address = place.hostname or "", place.port or default_port
            socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
            return None
        except (OSError, ValueError) as error:
            reasons.append(f"{without_password(url)}: {error}")
    return "; ".join(reasons)


def needs_server(
    setting: str,
    server: str,
    instead: str | None,
    *,
    variable: str,
    environment: Mapping[str, str],
    urls: Iterable[str],
    default_port: int,
) -> str | None:
    """Why Dynamo cannot start with a setting that needs a server; None if one takes connections.

    Takes as long as ``failures``.

    Args:
        setting: to be named.
        server: what it needs, such as ``a NATS server``.
        instead: what else could be chosen; None for nothing.
        variable: of ``environment``, which names the servers.
        urls, default_port: as of ``failures``.
    """
    reasons = failures(urls, default_port)
    if reasons is None:
        return None
    given = "" if environment.get(variable) else ", which is not set"
    name = f"name it in {variable}"
    ways = f"start one, {name}, or take another {instead}" if instead else f"start one, or {name}"
    return f"{setting} needs {server}, and none is reached by {variable}{given} ({reasons}); {ways}"
