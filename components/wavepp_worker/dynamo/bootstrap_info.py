"""How decode finds the prefill of a request: Dynamo's ``bootstrap_info``, or our ``disaggregated_params``.

And what the two say to each other of a prefill that failed: the reason of its bootstrap room.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from wavepp_worker.errors import InvalidRequest, WaveppError
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret

if TYPE_CHECKING:
    from dynamo.common.backend.engine import GenerateRequest

HANDOFF_SCHEMA = "wavepp.handoff.v2"
"""Version of what ``disaggregated_params`` holds; a decode worker refuses others."""

LOCAL_PREFILL = "x-bypass-remote-prefill"
"""The annotation by which a router has a decode worker prefill a prompt itself (conditional disaggregation). Routers
take it out of what clients send; one that arrives beside a prefill says nothing."""
_INVALID_REQUEST = "invalid request: "


def fresh_bootstrap_room() -> int:
    """A bootstrap room that no one else uses, of 63 bits as the frontend's own."""
    return secrets.randbits(63)


def chosen_bootstrap_room(request: GenerateRequest) -> int | None:
    """The bootstrap room the frontend chose, or None where it leaves that to the prefill worker.

    Raises:
        InvalidRequest: it is no number of 64 bits.
    """
    room = (request.get("bootstrap_info") or {}).get("bootstrap_room")
    return None if room is None else _number("bootstrap_room", room, 2**64)


def disaggregated_params(address: BootstrapAddress) -> dict[str, Any]:
    """An address as what a prefill worker answers, for the frontend to pass on to decode."""
    return {
        "schema": HANDOFF_SCHEMA,
        "host": address.host,
        "port": address.port,
        "room": address.room,
        "secret": address.secret.hex(),
    }


def advertised_host(host: str, key: Secret) -> str:
    """``host`` as a prefill worker registers it, with the key of its bootstrap server's rooms before it.

    Where the frontend chooses a room, prefill and decode learn of it at the same time: all else that decode is
    told is what the prefill worker registered, which the frontend passes on as it is.
    """
    return f"{key.hex()}@{host}"


def bootstrap_address(request: GenerateRequest) -> BootstrapAddress | None:
    """Where the prefill of a decode request is; None if the router has it prefilled where it is decoded.

    Raises:
        InvalidRequest: the request came without a prefill, or from a prefill worker of another kind, or the
            address is none.
    """
    info = request.get("bootstrap_info")
    if info:
        port = _number("bootstrap_port", info.get("bootstrap_port"), 2**16)
        room = _number("bootstrap_room", info.get("bootstrap_room"), 2**64)
        key, _, host = str(info.get("bootstrap_host")).partition("@")
        return BootstrapAddress(host=host, port=port, room=room, secret=_secret(key).for_room(room))
    params = (request.get("prefill_result") or {}).get("disaggregated_params")
    annotations = request.get("annotations")
    if not params and isinstance(annotations, list) and LOCAL_PREFILL in annotations:
        return None
    if not params:
        raise InvalidRequest(
            "this decode worker got a request that no prefill worker has seen, and no router asks it to prefill that "
            "itself. Start a WavePP prefill worker in the same namespace, or use the agg worker"
        )
    if params.get("schema") != HANDOFF_SCHEMA:
        raise InvalidRequest(
            f"the prefill worker's hand-off has schema {params.get('schema')!r}, this decode worker "
            f"understands {HANDOFF_SCHEMA!r}; run the same WavePP version on both"
        )
    return BootstrapAddress(
        host=str(params.get("host")),
        port=_number("port", params.get("port"), 2**16),
        room=_number("room", params.get("room"), 2**64),
        secret=_secret(params.get("secret")),
    )


def _number(key: str, value: Any, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise InvalidRequest(
            f"{key} of the hand-off is {value!r}, but must be a whole number from 0 to {limit - 1}"
        )
    return value


def _secret(text: Any) -> Secret:
    try:
        return Secret.from_hex(str(text))
    except ValueError:
        raise InvalidRequest(
            "the hand-off came without its secret, so not from a prefill worker of this version; run the same "
            "WavePP version on both"
        ) from None


def failure_reason(error: WaveppError) -> str:
    """What a prefill worker says in the bootstrap room of a request that failed."""
    return f"{_INVALID_REQUEST if isinstance(error, InvalidRequest) else ''}{error}"


def invalid_request_in(reason: str) -> InvalidRequest | None:
    """The client's own mistake, if that is what failed the prefill; other words may stand before it."""
    _, found, sentence = reason.partition(_INVALID_REQUEST)
    return InvalidRequest(sentence) if found else None
