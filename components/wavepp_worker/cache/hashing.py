"""Chained block hashes: the key of a block is a function of the whole prefix that ends with it."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict

import xxhash

from wavepp_worker import token_ids

RUN_BLOCKS = 64
"""Blocks that ``BlockHasher`` remembers and looks up as one."""


def cache_seed(model_id: str, salt: str, lora: str) -> int:
    """The root of the chain, ``H_{-1}`` with its extra keys (paper, section 4.3).

    Equal in every process and on every host for equal arguments, so replicas agree on keys. Lengths are
    part of the input: ``("a", "bc")`` and ``("ab", "c")`` differ.
    """
    parts = [part.encode() for part in (model_id, salt, lora)]
    return xxhash.xxh3_64_intdigest(b"".join(len(part).to_bytes(4, "little") + part for part in parts))


def block_hashes(tokens: bytes | memoryview, block_size: int, seed: int) -> list[int]:
    """``H_i = hash(B_i, H_{i-1})`` for every full block.

    Args:
        tokens: little-endian uint32 token ids.
        block_size: tokens per block.
        seed: ``cache_seed`` of the request, or the key of the block before the first.

    Returns:
        One unsigned 64-bit key per full block; a partial last block has none.
    """
    digest = xxhash.xxh3_64_intdigest
    width = token_ids.BYTES * block_size
    whole = memoryview(tokens)[: len(tokens) // width * width]
    return [seed := digest(content, seed) for (content,) in struct.Struct(f"{width}s").iter_unpack(whole)]


class BlockHasher:
    """``block_hashes`` that remembers runs of blocks, so that a prefix seen before costs one hash per run.

    A run is recognised by the hash of its tokens, seeded with the key before it: like the keys themselves, it
    stands for the whole prefix. Thread-safe.

    Args:
        block_size: tokens per block.
        runs: most runs of ``RUN_BLOCKS`` blocks to remember, about 3 KB each; the least recently used go first.
    """

    def __init__(self, block_size: int, runs: int = 4096) -> None:
        self._block = block_size
        self._limit = runs
        self._runs: OrderedDict[int, list[int]] = OrderedDict()
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        """Runs remembered."""
        return len(self._runs)

    def keys(self, tokens: bytes, seed: int) -> list[int]:
        """Equal to ``block_hashes(tokens, block, seed)``."""
        digest = xxhash.xxh3_64_intdigest
        width = token_ids.BYTES * self._block * RUN_BLOCKS
        whole = len(tokens) // width * width
        view = memoryview(tokens)
        used: list[tuple[int, list[int]]] = []
        keys: list[int] = []
        for offset in range(0, whole, width):
            content = view[offset : offset + width]
            name = digest(content, seed)
            run = self._runs.get(name) or block_hashes(content, self._block, seed)
            used.append((name, run))
            keys += run
            seed = run[-1]
        keys += block_hashes(view[whole:], self._block, seed)
        self._remember(used)
        return keys

    def _remember(self, used: list[tuple[int, list[int]]]) -> None:
        """The first run of a prompt counts as used last: others are more likely to share it."""
        with self._mutex:
            for name, run in reversed(used):
                self._runs[name] = run
                self._runs.move_to_end(name)
            while len(self._runs) > self._limit:
                self._runs.popitem(last=False)
