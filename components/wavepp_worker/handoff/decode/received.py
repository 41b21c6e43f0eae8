"""What a finished hand-off was. Apart from the receiving, as those that are told of it need no tensors."""

from __future__ import annotations

import msgspec

from wavepp_worker.handoff.offer import FirstToken, Offer


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """When a hand-off got how far, in monotonic seconds.

    Attributes:
        began: the room is asked for.
        offered: all ranks hold room for the prompt, and its KV can be pulled while it is computed.
        prefilled: its first token is here.
        ended: so is all KV.
    """

    began: float
    offered: float
    prefilled: float
    ended: float


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A finished hand-off: all layers of the prompt are in the blocks that ``allocate`` gave."""

    offer: Offer
    first: FirstToken
    bytes_received: int
    moments: Moments
