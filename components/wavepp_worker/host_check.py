"""Whether something can listen where it shall."""

from __future__ import annotations

import socket

from wavepp_worker.errors import ConfigError


def check_host(host: str, key: str = "host") -> None:
    """Refuse what is no address of this machine.

    Args:
        key: the setting or the variable that has it.

    Raises:
        ConfigError: names ``key``.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"{key}: {host!r} is no host name or address; give one of this machine's"
        ) from error
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"{key}: {host} is not an address of this machine; give one that is") from error
