"""Loading NIXL, only where it is used."""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import os
from typing import Any

from wavepp_worker.errors import ConfigError

# The meta package chooses the build that fits torch; a build alone, as the ``nixl`` extra installs, does too.
_PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
LOOPBACK_DEVICE = "lo"


def nixl_installed() -> bool:
    return any(importlib.util.find_spec(package) is not None for package in _PACKAGES)


def load_nixl(host: str) -> Any:
    """The NIXL Python API, for a process that is to be reached at ``host``.

    Raises:
        ConfigError: no build of it is installed, or none can be loaded.
    """
    if _is_loopback(host):
        # Its UCX listens on every network device unless told otherwise, and asks nobody who they are.
        os.environ.setdefault("UCX_NET_DEVICES", LOOPBACK_DEVICE)
    reasons = []
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
            return importlib.import_module(f"{package}._api")
        except ImportError as error:
            reasons.append(str(error))
    raise ConfigError(
        f"NIXL cannot be loaded ({'; '.join(reasons)}): install it with pip install --no-deps nixl "
        "nixl-cu12, or set handoff to socket"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
