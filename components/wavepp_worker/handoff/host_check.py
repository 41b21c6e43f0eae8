"""Whether a hand-off can listen where it shall."""

from __future__ import annotations

import socket

from wavepp_worker.errors import ConfigError


def check_host(host: str) -> None:
    """Refuse what is no address of this machine.

    Raises:
        ConfigError: names ``host``.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host: {host!r} is no host name or address; give one of this machine's") from error
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"host: {host} is not an address of this machine; give one that is") from error
