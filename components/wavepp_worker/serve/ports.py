"""Free TCP ports, held from the moment they are chosen."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError

LAST_OF_DYNAMO = 32767
"""Dynamo reads ``DYN_SYSTEM_PORT`` as a signed 16-bit number."""
# Below that, and below the range Linux takes outgoing ports from, so that a free port stays free until its process
# binds it.
_FIRST, _LAST = 20000, 32000
_NAME = "wavepp-port"
_ALL_ADDRESSES = ("0.0.0.0", "::")


def is_free(host: str, port: int, *, host_key: str = "--host", port_key: str = "--port") -> bool:
    """Whether a listener could bind ``host:port`` now.

    Raises:
        ConfigError: ``host`` is not an address of this machine, or only others may listen on ``port``; names the key.
    """
    family, address = _resolved(host, port, host_key)
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


class HeldPorts:
    """Ports that one launcher chose for its processes; no other launcher chooses them as long as this is there.

    Processes bind their ports themselves, seconds after they were chosen and again in each of their lives, so nobody
    else can listen there meanwhile. A name that only one process can have stands for the port: one of the network
    namespace, as ports are, and gone with the process.
    """

    def __init__(self) -> None:
        self._names: dict[int, socket.socket] = {}

    def __del__(self) -> None:
        self.close()

    def __contains__(self, port: int) -> bool:
        return port in self._names

    def close(self) -> None:
        """Hold no port any more; idempotent."""
        for name in self._names.values():
            name.close()
        self._names.clear()

    def hold(self, host: str, port: int, *, host_key: str = "--host", port_key: str = "--port") -> bool:
        """Hold a port that nobody listens on; False if somebody does, or it is held already.

        Raises:
            ConfigError: as ``is_free``.
        """
        if port in self._names:
            return False
        _, address = _resolved(host, port, host_key)
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        held = False
        try:
            name.bind(f"\0{_NAME}-{address[0]}-{port}")
            # Of two launchers that come at the same time, each sees the other, or one of them.
            held = not _held_elsewhere(address[0], port) and is_free(
                host, port, host_key=host_key, port_key=port_key
            )
        except OSError:
            held = False
        finally:
            if held:
                self._names[port] = name
            else:
                name.close()
        return held

    def choose(self, count: int) -> list[int]:
        """Hold ``count`` ports of 127.0.0.1.

        Raises:
            ConfigError: there are not so many.
        """
        found: list[int] = []
        for port in random.sample(range(_FIRST, _LAST), _LAST - _FIRST):
            if len(found) == count:
                break
            if self.hold("127.0.0.1", port):
                found.append(port)
        if len(found) < count:
            raise ConfigError(
                f"{count} free ports are needed between {_FIRST} and {_LAST}; {len(found)} are free"
            )
        return found

    def http(self, host: str, asked: int | None, key: str, default: int) -> int:
        """Hold the port HTTP is served on: the asked one, else ``default`` or the next free one above it.

        Raises:
            ConfigError: the asked port is in use, or is none; names ``key``.
        """
        if asked is None:
            for port in range(default, default + 200):
                if self.hold(host, port):
                    return port
            raise ConfigError(f"--port: {default} to {default + 199} are all in use; choose one with --port")
        if not 1 <= asked <= 65535:
            raise ConfigError(f"{key}: {asked} is not a port number between 1 and 65535")
        if self.hold(host, asked, port_key=key):
            return asked
        if is_free(host, asked):
            raise ConfigError(
                f"{key}: port {asked} of {host} is held by another dynamo serve, which is to listen there; "
                "choose another, or leave it out to get a free one"
            )
        raise ConfigError(
            f"{key}: port {asked} of {host} is in use; stop who listens there (ss -ltnp 'sport = :{asked}'), "
            "choose another, or leave it out to get a free one"
        )


def _held_elsewhere(address: str, port: int) -> bool:
    """Whether ``port`` is held on another address that cannot be listened on beside this one."""
    start, end = f"@{_NAME}-", f"-{port}"
    for line in Path("/proc/net/unix").read_text().splitlines():
        name = line.rpartition(" ")[2]
        if name.startswith(start) and name.endswith(end):
            other = name[len(start) : -len(end)]
            if other != address and (other in _ALL_ADDRESSES or address in _ALL_ADDRESSES):
                return True
    return False


def _resolved(host: str, port: int, host_key: str) -> tuple[socket.AddressFamily, Any]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"{host_key}: {host} is not a host name or an address ({error.strerror})"
        ) from error
    return family, address
