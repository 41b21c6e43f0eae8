"""Which transport a configuration asks for."""

from __future__ import annotations

from typing import Literal

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.nixl.library import nixl_installed


def resolve_transport(handoff: str) -> Literal["none", "socket", "nixl"]:
    """What the configuration key ``handoff`` (none, socket, nixl or auto) means on this machine.

    Raises:
        ConfigError: NIXL is asked for but not installed, or ``handoff`` is something else.
    """
    if handoff == "auto":
        return "nixl" if nixl_installed() else "socket"
    if handoff == "nixl":
        if not nixl_installed():
            raise ConfigError(
                "handoff is nixl, but NIXL is not installed: install it with pip install --no-deps nixl "
                "nixl-cu12, or set handoff to socket or auto"
            )
        return "nixl"
    if handoff == "socket":
        return "socket"
    if handoff == "none":
        return "none"
    raise ConfigError(f"handoff is {handoff!r}; choose none, socket, nixl or auto")
