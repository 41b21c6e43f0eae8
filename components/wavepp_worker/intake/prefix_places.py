"""Which replica prefilled a prefix last, as far as one sender knows. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from wavepp_worker import token_ids

PIECE_TOKENS = 64
"""Tokens by which prefixes are told apart."""
MOST_PIECES = 65_536
"""Pieces that are remembered, of 4 million tokens; those not asked for longest are forgotten."""


class Place(NamedTuple):
    """A replica, and how many of a prompt's tokens it is likely to have."""

    replica: str
    tokens: int


class PrefixPlaces:
    """What a sender was told by answers. A wrong guess costs the time until another replica may take the job."""

    def __init__(self, most: int = MOST_PIECES) -> None:
        self._most = most
        self._replicas: OrderedDict[bytes, str] = OrderedDict()

    def note(self, tokens: bytes, salt: str, replica: str) -> None:
        """A replica has prefilled a prompt.

        Args:
            tokens: packed token ids.
            salt: of the request; prefixes under different salts have nothing in common.
        """
        for digest in _digests(tokens, salt):
            self._replicas[digest] = replica
            self._replicas.move_to_end(digest)
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)

    def find(self, tokens: bytes, salt: str) -> Place | None:
        """Who had the longest beginning of a prompt; None if nobody had any."""
        found = None
        for count, digest in enumerate(_digests(tokens, salt), start=1):
            replica = self._replicas.get(digest)
            if replica is None:
                break
            found = Place(replica, count * PIECE_TOKENS)
        return found


def _digests(tokens: bytes, salt: str) -> Iterator[bytes]:
    """One for each prefix of whole pieces."""
    width = PIECE_TOKENS * token_ids.BYTES
    digest = hashlib.blake2b(salt.encode(errors="surrogatepass"), digest_size=16).digest()
    for start in range(0, len(tokens) - width + 1, width):
        digest = hashlib.blake2b(digest + tokens[start : start + width], digest_size=16).digest()
        yield digest
