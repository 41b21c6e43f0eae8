"""Where Dynamo's variables have a process listen: whether it could."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from wavepp_worker.dynamo_version import dynamo_is_at_least
from wavepp_worker.errors import ConfigError
from wavepp_worker.host_check import check_host
from wavepp_worker.serve.config_sources import LAUNCHER
from wavepp_worker.serve.environment import ANSWERS_VARIABLE, REQUESTS_VARIABLE, SYSTEM_HOST_VARIABLE
from wavepp_worker.serve.ports import LAST_OF_DYNAMO, is_free
from wavepp_worker.serve.worker_ports import VARIABLE as SYSTEM_PORT_VARIABLE

_BRACKETED = re.compile(r"\[(?P<address>[^\]]*)\]")
_NO_SYSTEM_PORT = re.compile(r"-\d+|")
"""Dynamo takes a negative number for none."""
_ALL_INTERFACES = "0.0.0.0"
"""Where Dynamo has a worker answer unless a variable says otherwise."""
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_LINK_SCOPE = 0x20
_FIRST_WITH_ADDRESSES = (1, 5)
"""Before this version, Dynamo takes answers at an interface that is named, and at no address."""


def check_listen_addresses(
    env: Mapping[str, str], service: str = "", own: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse a process that could not listen: Dynamo would try for ever, or end with a traceback.

    Args:
        env: the process's environment.
        service: of a graph, whose process it is.
        own: the variables that the service's settings give its processes.

    Raises:
        ConfigError: names the variable.
    """

    def written(name: str) -> str:
        return written_variable(name, service, own)

    if (requests := env.get(REQUESTS_VARIABLE)) is not None:
        _check_requests(requests, written(REQUESTS_VARIABLE))
    # Nothing in it is as if it were not set to Dynamo, which takes the machine's routable address then.
    if answers := env.get(ANSWERS_VARIABLE):
        _check_answers(answers, written(ANSWERS_VARIABLE))
    if system := env.get(SYSTEM_HOST_VARIABLE):
        check_host(system, written(SYSTEM_HOST_VARIABLE))
    _check_system_port(env.get(SYSTEM_PORT_VARIABLE, ""))


def written_variable(name: str, service: str, own: Mapping[str, str]) -> str:
    """A variable as the user wrote it: as a key of a service, where its settings (``own``) have it."""
    return f"{service}.{LAUNCHER}.envs.{name}" if name in own else name


def check_system_port(env: Mapping[str, str]) -> None:
    """Refuse a worker whose ``/health`` could not be asked: Dynamo would go on without.

    Args:
        env: the worker's environment, which ``check_listen_addresses`` took.

    Raises:
        ConfigError: somebody listens on the port; names the variable.
    """
    host, text = env.get(SYSTEM_HOST_VARIABLE) or _ALL_INTERFACES, env.get(SYSTEM_PORT_VARIABLE, "")
    if not text.isdecimal() or int(text) == 0:
        return
    if not is_free(host, int(text), host_key=SYSTEM_HOST_VARIABLE, port_key=SYSTEM_PORT_VARIABLE):
        raise ConfigError(
            f"{SYSTEM_PORT_VARIABLE}: port {text} of {host} is in use; stop who listens there "
            f"(ss -ltnp 'sport = :{text}'), choose another, or give 0 for any that is free"
        )


def _check_requests(text: str, key: str) -> None:
    bracketed = _BRACKETED.fullmatch(text)
    host = text if bracketed is None else bracketed["address"]
    try:
        written_as = 6 if bracketed else 4
        if ipaddress.ip_address(host).version != written_as:
            raise ValueError(host)
    except ValueError as error:
        raise ConfigError(
            f"{key}: {text!r} is no address that Dynamo takes; give one of this machine's in numbers, such as "
            "127.0.0.1, or [::1] with its brackets"
        ) from error
    check_host(host, key)


def _check_answers(text: str, key: str) -> None:
    names = [name for _, name in socket.if_nameindex()]
    if text in names:
        if not dynamo_is_at_least(*_FIRST_WITH_ADDRESSES) and (link := _link_local(text)) is not None:
            raise ConfigError(
                f"{key}: Dynamo before 1.5 listens at the last address of {text}, {link}, which cannot be listened at; "
                f"set it to nothing ({ANSWERS_VARIABLE}=) for this machine's routable address, name another interface, "
                f"or switch IPv6 off at this one (sysctl net.ipv6.conf.{text}.disable_ipv6=1)"
            )
        return
    there = ", ".join(names)
    if not dynamo_is_at_least(*_FIRST_WITH_ADDRESSES):
        raise ConfigError(f"{key}: {text!r} is no network interface of this machine, which has {there}")
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise ConfigError(
            f"{key}: {text!r} is neither an address nor a network interface of this machine, which has {there}"
        ) from error
    check_host(text, key)


def _link_local(interface: str) -> str | None:
    """An address of an interface that is one only together with the interface's name; None if it has none."""
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, _, _, scope, _, name = line.split()
        if name == interface and int(scope, 16) == _LINK_SCOPE:
            return str(ipaddress.IPv6Address(int(number, 16)))
    return None


def _check_system_port(text: str) -> None:
    # Of a service's processes the launcher chooses it, or has refused it.
    if _NO_SYSTEM_PORT.fullmatch(text) or (text.isdecimal() and int(text) <= LAST_OF_DYNAMO):
        return
    raise ConfigError(
        f"{SYSTEM_PORT_VARIABLE}: {text!r} is no port that Dynamo takes here; give one from 1 to {LAST_OF_DYNAMO}, "
        "0 for any that is free, or leave it out to have none"
    )
