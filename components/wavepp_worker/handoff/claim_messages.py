"""What travels on a *claim* connection, decode worker to bootstrap server; every message carries its room.

Receivers check the room and refuse anything else.
"""

from __future__ import annotations

import msgspec

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.message import HandoffMessage
from wavepp_worker.handoff.offer import FirstToken, Offer
from wavepp_worker.handoff.secret import Secret


class RoomMessage(HandoffMessage, frozen=True, kw_only=True):
    """Base of all messages on a claim connection."""

    room: int


class ClaimRoom(RoomMessage, frozen=True):
    """Decode: tell me who holds this room's KV. ``wait``: seconds the decode side will wait for all of it."""

    secret: Secret
    wait: float


class CancelClaim(RoomMessage, frozen=True):
    """Decode: nobody wants this room any more; stop its prefill."""


class Offered(RoomMessage, frozen=True):
    """Bootstrap server: pull from these ranks."""

    offer: Offer


class Prefilled(RoomMessage, frozen=True):
    """Bootstrap server: the prompt is done. Last message of a claim."""

    first: FirstToken


class ClaimFailed(RoomMessage, frozen=True):
    """Bootstrap server: there will be no first token, and why. Last message of a claim."""

    message: str


FromClaimant = ClaimRoom | CancelClaim
ToClaimant = Offered | Prefilled | ClaimFailed

FROM_CLAIMANT: msgspec.msgpack.Decoder[FromClaimant] = msgspec.msgpack.Decoder(FromClaimant)
TO_CLAIMANT: msgspec.msgpack.Decoder[ToClaimant] = msgspec.msgpack.Decoder(ToClaimant)


def check_room(message: RoomMessage, room: int) -> None:
    """Raise ``HandoffError`` unless ``message`` is about ``room``."""
    if message.room != room:
        raise HandoffError(
            f"a {type(message).__name__} for room {message.room} arrived on the connection of room {room}"
        )
