"""Free TCP ports."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

from wavepp_worker.errors import ConfigError

LAST_OF_DYNAMO = 32767
"""Dynamo reads ``DYN_SYSTEM_PORT`` as a signed 16-bit number."""
# Below that, and below the range Linux takes outgoing ports from, so that a free port stays free until its process
# binds it.
_FIRST, _LAST = 20000, 32000


def is_free(host: str, port: int, *, host_key: str = "--host", port_key: str = "--port") -> bool:
    """Whether a listener could bind ``host:port`` now.

    Raises:
        ConfigError: ``host`` is not an address of this machine, or only others may listen on ``port``; names the key.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"{host_key}: {host} is not a host name or an address ({error.strerror})"
        ) from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except PermissionError as error:
            raise ConfigError(
                f"{port_key}: this user may not listen on {port}; use one from 1024 on"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"{host_key}: {host} is not an address of this machine") from error
            return False
    return True


def free_ports(count: int, *, taken: Collection[int] = ()) -> list[int]:
    """``count`` different free ports of 127.0.0.1.

    Raises:
        ConfigError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _LAST - _FIRST):
        if len(found) == count:
            break
        if port not in taken and is_free("127.0.0.1", port):
            found.append(port)
    if len(found) < count:
        raise ConfigError(
            f"{count} free ports are needed between {_FIRST} and {_LAST}; {len(found)} are free"
        )
    return found


def http_port(host: str, asked: int | None, key: str, default: int) -> int:
    """The port HTTP is served on: the asked one, else ``default`` or the next free one above it.

    Raises:
        ConfigError: the asked port is in use, or is none; names ``key``.
    """
    if asked is None:
        for port in range(default, default + 200):
            if is_free(host, port):
                return port
        raise ConfigError(f"--port: {default} to {default + 199} are all in use; choose one with --port")
    if not 1 <= asked <= 65535:
        raise ConfigError(f"{key}: {asked} is not a port number between 1 and 65535")
    if not is_free(host, asked, port_key=key):
        raise ConfigError(
            f"{key}: port {asked} of {host} is in use; stop who listens there (ss -ltnp 'sport = :{asked}'), "
            "choose another, or leave it out to get a free one"
        )
    return asked
