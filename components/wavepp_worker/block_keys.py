"""The keys of KV blocks: how they are made, and how they travel.

A block's key stands for the whole prefix that ends with the block, and for the model, salt and LoRA it was computed
under. Caches compare nothing else, so two prefixes must never have one key, whatever clients send. A key therefore is
a message authentication code under a secret that no client knows, made of AES-128:

* A block's *digest* is that of PMAC (Black and Rogaway, 2002): each 16 bytes of its tokens are masked by where they
  are, encrypted on their own, and added up. Two blocks have one digest by luck alone.
* A key is the EMAC (ISO/IEC 9797-1, MAC algorithm 2) of the digests of all blocks up to its own: a pseudo-random
  function of messages of any length, some of them prefixes of others.

So tokens are encrypted many at a time, and only 16 bytes of each block one after the other. Of all prefixes of a prompt
it takes one pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from wavepp_worker import token_ids

KEY_BYTES = 16
SECRET_BYTES = 32
BYTES_AT_ONCE = 128 << 10
"""Bytes of tokens that are encrypted at once: they stay in a core's cache, which takes half the time."""
_DTYPE = np.dtype((np.void, KEY_BYTES))


@dataclass(frozen=True, slots=True)
class BlockKeys(Sequence[bytes]):
    """The keys of consecutive blocks, packed one after the other; single ones are cut out when they are asked for.

    Attributes:
        packed: ``KEY_BYTES`` bytes of each.
    """

    packed: bytes = b""

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> BlockKeys:
        return cls(b"".join(keys))

    def __len__(self) -> int:
        return len(self.packed) // KEY_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            keys: list[bytes] = np.frombuffer(self.packed, _DTYPE)[index].tolist()
            return keys
        if index < 0:
            index += len(self)
        key = self.packed[KEY_BYTES * index : KEY_BYTES * (index + 1)] if index >= 0 else b""
        if not key:
            raise IndexError(f"block {index} has no key; there are {len(self)}")
        return key

    def __iter__(self) -> Iterator[bytes]:
        return iter(self[:])

    def index(self, value: bytes, start: int = 0, stop: int | None = None) -> int:
        """The first block with this key. ValueError if there is none."""
        end = KEY_BYTES * (len(self) if stop is None else stop)
        at = self.packed.find(value, KEY_BYTES * start, end)
        while at >= 0 and at % KEY_BYTES:
            at = self.packed.find(value, at + 1, end)
        if at < 0:
            raise ValueError(f"no block has key {value.hex()}")
        return at // KEY_BYTES


class BlockKeyMaker:
    """Makes the keys of one replica's blocks. Thread-safe.

    Args:
        secret: ``SECRET_BYTES`` random bytes; under another secret all keys are others.
        model_id: what is cached depends on the model.
        block_size: tokens per block.
    """

    def __init__(self, secret: bytes, model_id: str, block_size: int) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret has {len(secret)} bytes, it takes {SECRET_BYTES}")
        self._width = token_ids.BYTES * block_size
        self._parts = -(-self._width // KEY_BYTES)
        derived = hashlib.shake_256(b"WavePP block keys" + secret).digest((3 + self._parts) * KEY_BYTES)
        parts, chain, final = (derived[at * KEY_BYTES : (at + 1) * KEY_BYTES] for at in range(3))
        self._part, self._chain, self._final = map(algorithms.AES, (parts, chain, final))
        self._at_once = max(1, BYTES_AT_ONCE // (self._parts * KEY_BYTES))
        # The same row for each block at once: adding up two arrays of one shape takes a tenth of the time.
        self._masks = np.tile(np.frombuffer(derived[3 * KEY_BYTES :], np.uint64), (self._at_once, 1))
        self._model_id = model_id
        self.secret_id = hashlib.sha256(b"WavePP block keys 2" + secret).hexdigest()[:32]
        """Tells secrets, and ways to make keys, apart, and says nothing else about one."""

    def keys(self, tokens: bytes, salt: str = "", lora: str = "") -> bytes:
        """The packed keys of all full blocks; a partial last block has none.

        Args:
            tokens: packed token ids, see ``token_ids``.
            salt: cache isolation key of the request.
            lora: its LoRA name.
        """
        blocks = len(tokens) // self._width
        if not blocks:
            return b""
        chain = Cipher(self._chain, modes.CBC(bytes(KEY_BYTES))).encryptor()
        chain.update(prefix_root(self._model_id, salt, lora))
        states = chain.update(self._digests(memoryview(tokens)[: blocks * self._width], blocks))
        # The state after a block is not its key: whoever knew it could work out those of longer prefixes.
        return Cipher(self._final, modes.ECB()).encryptor().update(states)

    def _digests(self, tokens: memoryview, blocks: int) -> memoryview:
        """Packed, ``KEY_BYTES`` of each block."""
        words = KEY_BYTES // 8
        width = self._parts * KEY_BYTES
        at_once = min(blocks, self._at_once)
        masked = np.empty((at_once, self._parts * words), np.uint64)
        # ``update_into`` asks for room for another cipher block, less a byte.
        encrypted = bytearray(at_once * width + KEY_BYTES - 1)
        parts = np.frombuffer(encrypted, np.uint64, masked.size).reshape(masked.shape)
        digests = np.empty((blocks, words), np.uint64)
        encryptor = Cipher(self._part, modes.ECB()).encryptor()
        for first in range(0, blocks, at_once):
            count = min(at_once, blocks - first)
            some = self._padded(tokens[first * self._width : (first + count) * self._width])
            np.bitwise_xor(some, self._masks[:count], out=masked[:count])
            encryptor.update_into(masked[:count].data.cast("B"), encrypted)
            for word in range(words):
                digest = digests[first : first + count, word]
                # Column by column: the library adds rows of so few parts up one by one, which takes longer.
                digest[:] = parts[:count, word]
                for at in range(words + word, self._parts * words, words):
                    np.bitwise_xor(digest, parts[:count, at], out=digest)
        return digests.data.cast("B")

    def _padded(self, blocks: memoryview) -> npt.NDArray[np.uint64]:
        """A row for each block, filled up with zeros to whole parts: injective, as all have the same length."""
        given = np.frombuffer(blocks, np.uint8).reshape(-1, self._width)
        missing = -self._width % KEY_BYTES
        if missing:
            given = np.pad(given, ((0, 0), (0, missing)))
        return given.view(np.uint64)


def prefix_root(model_id: str, salt: str, lora: str) -> bytes:
    """32 bytes that every prefix begins with. Lengths are part of it: ``("a", "bc")`` and ``("ab", "c")`` differ."""
    parts = [part.encode() for part in (model_id, salt, lora)]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()
