"""Whether Dynamo's runtime uses NATS, whose variables a process may have for its queue of jobs alone."""

from __future__ import annotations

import os
from typing import Protocol

from wavepp_worker.errors import PlaneUnreached
from wavepp_worker.nats_variables import NATS_VARIABLES, why_unreached

_CHOOSES_BY_ITSELF = ("etcd", "kubernetes")
"""Discoveries with which Dynamo may take NATS for events where no plane is named."""


class Planes(Protocol):
    """How Dynamo's processes find and hear each other, by the names of its own flags."""

    discovery_backend: str
    request_plane: str
    event_plane: str | None


def hide_unused_nats(planes: Planes) -> None:
    """Take NATS's variables out of this process's environment where no plane is NATS.

    Dynamo's runtime connects to whatever they name, and does not start without it. Who needs them for a queue has read
    them before.

    Raises:
        PlaneUnreached: a plane is NATS, and no server is reached; names the variable.
    """
    for name in ("request_plane", "event_plane"):
        if getattr(planes, name) == "nats":
            if (reason := why_unreached(f"--{name.replace('_', '-')}=nats", os.environ)) is not None:
                raise PlaneUnreached(reason)
            return
    if planes.event_plane is None and planes.discovery_backend in _CHOOSES_BY_ITSELF:
        return
    for variable in NATS_VARIABLES:
        os.environ.pop(variable, None)
