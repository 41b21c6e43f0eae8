"""What every message between the processes of one worker has in common: frozen, tagged, msgpack."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages: frozen, and tagged with the class name on the wire."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)
