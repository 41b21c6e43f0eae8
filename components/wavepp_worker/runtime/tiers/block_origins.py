"""What the blocks of a rank are of: rank 0 keeps it beside their bytes, so that a router can be told of them again."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from wavepp_worker import token_ids

TEXT_BYTES = 192
"""Most bytes of salt and adapter name that the file of a disk tier takes for a block. What was computed under longer
ones is offloaded to disk like all others, but not found again after a restart."""
_FRAMING_BYTES = 16


class BlockOrigin(msgspec.Struct, frozen=True, array_like=True):
    """One block's packed token ids, and under which salt and adapter it was computed."""

    tokens: bytes
    salt: str
    lora: str


def origin_bytes(block_size: int) -> int:
    """Room for the origin of a block of ``block_size`` tokens, packed."""
    return token_ids.BYTES * block_size + TEXT_BYTES + _FRAMING_BYTES


class BlockOrigins:
    """The origin of each reusable block of a rank, by key; kept packed. Each method is atomic."""

    def __init__(self, block_size: int) -> None:
        self._limit = origin_bytes(block_size)
        self._packed: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, key: bytes, origin: BlockOrigin) -> None:
        """A block became reusable."""
        packed = msgspec.msgpack.encode(origin)
        if len(packed) <= self._limit:
            self._packed[key] = packed

    def load(self, key: bytes, packed: bytes) -> bool:
        """Take over what the disk kept for a block; False if that is not an origin."""
        try:
            msgspec.msgpack.decode(packed, type=BlockOrigin)
        except msgspec.DecodeError:
            return False
        self._packed[key] = packed
        return True

    def get(self, key: bytes) -> BlockOrigin:
        """The origin of a block that was added or loaded. KeyError otherwise."""
        return msgspec.msgpack.decode(self._packed[key], type=BlockOrigin)

    def packed(self, key: bytes) -> bytes:
        """As the disk is to keep it; empty if it is not known, or too long to be kept."""
        return self._packed.get(key, b"")

    def drop(self, key: bytes) -> None:
        """A block is not reusable any more."""
        self._packed.pop(key, None)

    def keep_only(self, keys: Collection[bytes]) -> None:
        """Drop all others."""
        for key in self._packed.keys() - set(keys):
            del self._packed[key]
