"""What travels on a *pull* connection, decode worker to one rank; every message carries its request id.

Those about KV carry token positions, too. Receivers check both and refuse anything else.
"""

from __future__ import annotations

import msgspec

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.message import HandoffMessage
from wavepp_worker.handoff.secret import Secret

PIECE_BYTES = 2 << 20
"""KV bytes a source copies and sends at a time, unless one token alone is larger."""

ASKING_SECONDS = 5.0
"""The longest that a living receiver is silent."""


class PullMessage(HandoffMessage, frozen=True, kw_only=True):
    """Base of all messages on a pull connection."""

    request_id: str


class Pull(PullMessage, frozen=True):
    """Decode: send me the request's KV from token 0.

    Attributes:
        wait: seconds it will wait for all of it.
        ready: whether it has blocks for it; else it will say ``SendKv`` when it has.
    """

    secret: Secret
    wait: float
    ready: bool = True


class SendKv(PullMessage, frozen=True):
    """Decode: now I have blocks for it."""


class StillPulling(PullMessage, frozen=True):
    """Decode: I am here and want it. Said every ``asking_seconds``; who does not say it is taken for gone."""


class KvPiece(PullMessage, frozen=True):
    """Rank: ``size`` bytes follow the frame, the export of tokens ``[start, end)`` of the rank's layers."""

    start: int
    end: int
    size: int


class StatePiece(PullMessage, frozen=True):
    """Rank, after all tokens: ``size`` bytes follow the frame, the state of its recurrent layers after the prompt."""

    size: int


class NixlAgent(PullMessage, frozen=True):
    """Rank, before its first ``KvRegions``: the metadata of the NIXL agent that the KV is registered with."""

    metadata: bytes
    memory: str
    device: int


class KvRegions(PullMessage, frozen=True):
    """Rank: tokens ``[start, end)`` may be read from its memory until the receiver says ``RegionsRead``.

    Attributes:
        sizes: bytes per block of each region of a block: per layer the keys, then the values.
        addresses: little-endian uint64 ``[blocks touched by [start, end), len(sizes)]``; 0 where a window has let go of
            a block, as decoding does not see it.
    """

    start: int
    end: int
    sizes: tuple[int, ...]
    addresses: bytes


class RegionsRead(PullMessage, frozen=True):
    """Decode: nothing below token ``end`` is being read any more, and it is all here."""

    end: int


class AllSent(PullMessage, frozen=True):
    """Rank: that was everything, ``tokens`` tokens and ``size`` bytes of KV and state."""

    tokens: int
    size: int


class PullReceived(PullMessage, frozen=True):
    """Decode: ``tokens`` tokens and ``size`` bytes of KV and state have arrived; the rank may let go."""

    tokens: int
    size: int


class PullValid(PullMessage, frozen=True):
    """Rank: the blocks were held until ``PullReceived`` came, so what was read is valid."""


class CancelPull(PullMessage, frozen=True):
    """Decode: the request is not wanted any more; the rank may let go. No read is in progress."""


class PullFailed(PullMessage, frozen=True):
    """Rank: there is no more to pull, and why. What arrived so far must not be used."""

    message: str


FromPuller = Pull | SendKv | StillPulling | RegionsRead | PullReceived | CancelPull
ToPuller = KvPiece | StatePiece | NixlAgent | KvRegions | AllSent | PullValid | PullFailed

FROM_PULLER: msgspec.msgpack.Decoder[FromPuller] = msgspec.msgpack.Decoder(FromPuller)
TO_PULLER: msgspec.msgpack.Decoder[ToPuller] = msgspec.msgpack.Decoder(ToPuller)


def asking_seconds(patience: float) -> float:
    """How often a receiver speaks to a rank that takes it for gone after ``patience`` seconds of silence."""
    return min(ASKING_SECONDS, patience / 6)


def check_request(message: PullMessage, request_id: str) -> None:
    """Raise ``HandoffError`` unless ``message`` is about ``request_id``."""
    if message.request_id != request_id:
        raise HandoffError(
            f"a {type(message).__name__} for request {message.request_id!r} arrived on the connection of "
            f"request {request_id!r}"
        )
