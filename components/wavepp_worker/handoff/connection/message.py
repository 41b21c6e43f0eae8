"""What every message between a decode worker and a prefill worker is: a frozen struct tagged by its class."""

from __future__ import annotations

import msgspec


class HandoffMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""


encode = msgspec.msgpack.Encoder().encode
