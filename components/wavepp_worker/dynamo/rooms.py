"""Rooms: where a decode worker finds the prefill of its request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from wavepp_worker.decode.messages import BootstrapAddress
from wavepp_worker.errors import InvalidRequest

SCHEMA = "wavepp.handoff.v1"
"""Version of what ``disaggregated_params`` holds; a decode worker refuses others."""

INVALID = "invalid request: "
"""What the reason of a failed room starts with if the request itself was wrong."""


def fresh_room() -> int:
    """A room number no one else uses, of 63 bits as the frontend's own."""
    return secrets.randbits(63)


def asked_room(request: Mapping[str, Any]) -> int | None:
    """The room the frontend chose, or None where it leaves that to the prefill worker."""
    room = (request.get("bootstrap_info") or {}).get("bootstrap_room")
    return None if room is None else int(room)


def to_params(address: BootstrapAddress) -> dict[str, Any]:
    """An address as a prefill worker's ``disaggregated_params``."""
    return {"schema": SCHEMA, "host": address.host, "port": address.port, "room": address.room}


def find(request: Mapping[str, Any]) -> BootstrapAddress:
    """Where the prefill of a decode request is.

    Raises:
        InvalidRequest: the request came without a prefill, or from a prefill worker of another kind.
    """
    info = request.get("bootstrap_info")
    if info:
        return BootstrapAddress(
            host=str(info["bootstrap_host"]),
            port=int(info["bootstrap_port"]),
            room=int(info["bootstrap_room"]),
        )
    params = (request.get("prefill_result") or {}).get("disaggregated_params")
    if not params:
        raise InvalidRequest(
            "this decode worker got a request that no prefill worker has seen: it does not prefill itself. "
            "Start a WavePP prefill worker in the same namespace, or use the agg worker"
        )
    if params.get("schema") != SCHEMA:
        raise InvalidRequest(
            f"the prefill worker's hand-off has schema {params.get('schema')!r}, this decode worker "
            f"understands {SCHEMA!r}; run the same WavePP version on both"
        )
    return BootstrapAddress(host=str(params["host"]), port=int(params["port"]), room=int(params["room"]))
