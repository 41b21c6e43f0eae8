"""The address of hand-offs of a worker that other hosts may find: one that they can reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from wavepp_worker.errors import ConfigError

REQUESTS_VARIABLE = "DYN_TCP_RPC_HOST"
"""The address that Dynamo takes requests at; the machine's routable one unless set."""

_OF_THIS_MACHINE = ("file", "mem")
"""Ways of discovery in which all workers are on one machine."""
_ANYWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses of documentation, to which no packet is sent; which own address would be used tells the routable one."""


@dataclass(frozen=True)
class HandoffHost:
    """Where hand-offs listen and are advertised.

    Attributes:
        host: the address.
        note: why it is another than the setting's default, for people; None if it is not.
    """

    host: str
    note: str | None = None


def handoff_host(
    host: str, *, given: bool, discovery: str, requests_at: str | None, routable: Callable[[], str | None]
) -> HandoffHost:
    """Where hand-offs listen.

    Args:
        host: the setting.
        given: whether somebody asked for it, rather than it being the default.
        discovery: how workers find each other, by Dynamo's name of it.
        requests_at: the address Dynamo takes requests at, if it was told one.
        routable: the machine's own address as others see it; None if it has none.

    Raises:
        ConfigError: others would find an address that leads them to themselves; names ``host``.
    """
    alone = requests_at is not None and is_loopback(requests_at)
    if discovery in _OF_THIS_MACHINE or alone or not is_loopback(host):
        return HandoffHost(host)
    reachable = requests_at or routable()
    if given or reachable is None:
        advice = "this machine's address" if reachable is None else f"{reachable}, this machine's"
        raise ConfigError(
            f"host: {host} reaches this machine alone, but workers of other hosts find it by discovery_backend="
            f"{discovery}; give {advice}, or set {REQUESTS_VARIABLE}=127.0.0.1 if all of them run here"
        )
    return HandoffHost(
        reachable,
        f"KV is handed over at {reachable} (host), as others find this worker by discovery_backend={discovery}",
    )


def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine alone; what is neither does not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def routable_address() -> str | None:
    """This machine's address as others see it; None if it has no route to anybody."""
    for address, family in _ANYWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(found):
            return found
    return None
