"""Chained block hashes: the key of a block is a function of the whole prefix that ends with it."""

from __future__ import annotations

import xxhash


def cache_seed(model_id: str, salt: str, lora: str) -> int:
    """The root of the chain, ``H_{-1}`` with its extra keys (paper, section 4.3).

    Equal in every process and on every host for equal arguments, so replicas agree on keys. Lengths are
    part of the input: ``("a", "bc")`` and ``("ab", "c")`` differ.
    """
    parts = [part.encode() for part in (model_id, salt, lora)]
    return xxhash.xxh3_64_intdigest(b"".join(len(part).to_bytes(4, "little") + part for part in parts))


def block_hashes(tokens: bytes, block: int, seed: int) -> list[int]:
    """``H_i = hash(B_i, H_{i-1})`` for every full block.

    Args:
        tokens: little-endian uint32 token ids.
        block: tokens per block.
        seed: ``cache_seed`` of the request.

    Returns:
        One unsigned 64-bit key per full block; a partial last block has none.
    """
    digest = xxhash.xxh3_64_intdigest
    width = 4 * block
    keys = []
    for offset in range(0, len(tokens) - width + 1, width):
        seed = digest(tokens[offset : offset + width], seed)
        keys.append(seed)
    return keys
