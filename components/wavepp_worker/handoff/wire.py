"""What travels between a decode worker and a prefill worker: frozen, tagged messages and their codec.

On a *claim* connection (decode to bootstrap server) every message carries the room; on a *pull* connection
(decode to one rank) every message carries the request id, and token positions where there are any. Receivers
check both and refuse anything else.
"""

from __future__ import annotations

import msgspec

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.interface import FirstToken, Offer

PIECE_BYTES = 2 << 20
"""KV bytes a source copies and sends at a time, unless one token alone is larger."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""


class RoomMessage(Message, frozen=True, kw_only=True):
    """On a claim connection."""

    room: int


class RankMessage(Message, frozen=True, kw_only=True):
    """On a pull connection."""

    request_id: str


class Claim(RoomMessage, frozen=True):
    """Decode: tell me who holds this room's KV. ``wait``: seconds the decode side will wait for all of it."""

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


class Pull(RankMessage, frozen=True):
    """Decode: send me the request's KV from token 0. ``wait``: seconds it will wait for all of it."""

    wait: float


class Piece(RankMessage, frozen=True):
    """Rank: ``size`` bytes follow the frame, the export of tokens ``[start, end)`` of the rank's layers."""

    start: int
    end: int
    size: int


class Agent(RankMessage, frozen=True):
    """Rank, before its first ``Regions``: the metadata of the NIXL agent that the KV is registered with."""

    metadata: bytes
    memory: str
    device: int


class Regions(RankMessage, frozen=True):
    """Rank: tokens ``[start, end)`` may be read from its memory until the receiver says ``Read``.

    Attributes:
        sizes: bytes per block of each region of a block: per layer the keys, then the values.
        addresses: little-endian uint64 ``[blocks touched by [start, end), len(sizes)]``.
    """

    start: int
    end: int
    sizes: tuple[int, ...]
    addresses: bytes


class Read(RankMessage, frozen=True):
    """Decode: nothing below token ``end`` is being read any more, and it is all here."""

    end: int


class End(RankMessage, frozen=True):
    """Rank: that was everything, ``tokens`` tokens and ``size`` KV bytes."""

    tokens: int
    size: int


class Received(RankMessage, frozen=True):
    """Decode: ``tokens`` tokens and ``size`` KV bytes have arrived; the rank may let go."""

    tokens: int
    size: int


class Released(RankMessage, frozen=True):
    """Rank: the blocks were held until ``Received`` came, so what was read is valid."""


class CancelPull(RankMessage, frozen=True):
    """Decode: the request is not wanted any more; the rank may let go. No read is in progress."""


class PullFailed(RankMessage, frozen=True):
    """Rank: there is no more to pull, and why. What arrived so far must not be used."""

    message: str


FromClaimant = Claim | CancelClaim
ToClaimant = Offered | Prefilled | ClaimFailed
FromPuller = Pull | Read | Received | CancelPull
ToPuller = Piece | Agent | Regions | End | Released | PullFailed

encode = msgspec.msgpack.Encoder().encode


class Codec:
    """One decoder per direction; each refuses a message that does not belong there."""

    from_claimant: msgspec.msgpack.Decoder[FromClaimant] = msgspec.msgpack.Decoder(FromClaimant)
    to_claimant: msgspec.msgpack.Decoder[ToClaimant] = msgspec.msgpack.Decoder(ToClaimant)
    from_puller: msgspec.msgpack.Decoder[FromPuller] = msgspec.msgpack.Decoder(FromPuller)
    to_puller: msgspec.msgpack.Decoder[ToPuller] = msgspec.msgpack.Decoder(ToPuller)


def check_room(message: RoomMessage, room: int) -> None:
    """Raise ``HandoffError`` unless ``message`` is about ``room``."""
    if message.room != room:
        raise HandoffError(
            f"a {type(message).__name__} for room {message.room} arrived on the connection of room {room}"
        )


def check_request(message: RankMessage, request_id: str) -> None:
    """Raise ``HandoffError`` unless ``message`` is about ``request_id``."""
    if message.request_id != request_id:
        raise HandoffError(
            f"a {type(message).__name__} for request {message.request_id!r} arrived on the connection of "
            f"request {request_id!r}"
        )
