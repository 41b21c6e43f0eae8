"""What whoever asks for KV must know: anybody may reach the ports that hand it over."""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated

import msgspec

REFUSAL = "this worker has nothing for who asks with this name and secret"
"""All that is said to who knows no secret, whether or not there is something of that name."""

_BYTES = 32


class Secret(msgspec.Struct, frozen=True):
    """Random bytes that only those know who may have a request's KV; never shown in words.

    Raises:
        msgspec.ValidationError: decoded from fewer than 16 or more than 64 bytes.
    """

    value: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]

    @classmethod
    def fresh(cls) -> Secret:
        """One that nobody else has."""
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def from_hex(cls, text: str) -> Secret:
        """What ``hex`` wrote.

        Raises:
            ValueError: it is not that.
        """
        value = bytes.fromhex(text)
        if len(value) != _BYTES:
            raise ValueError(f"a secret has {_BYTES} bytes, not {len(value)}")
        return cls(value)

    def hex(self) -> str:
        """To pass it on where only text can travel. Not to be logged."""
        return self.value.hex()

    def for_room(self, room: int) -> Secret:
        """The secret of one room of the bootstrap server that this is the key of; says nothing about others."""
        return Secret(hmac.digest(self.value, f"room {room}".encode(), "sha256"))

    def matches(self, other: Secret) -> bool:
        """Whether both are the same, in a time that does not tell where they differ."""
        return hmac.compare_digest(self.value, other.value)

    def __repr__(self) -> str:
        return "Secret(...)"
