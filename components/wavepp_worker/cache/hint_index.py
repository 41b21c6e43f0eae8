"""The hint index of one rank: which keys are reusable in which window. Owns nothing; may be stale."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from wavepp_worker.block_keys import KEY_BYTES, BlockKeys
from wavepp_worker.errors import AuditError

SHARDS = 16
GALLOP_FACTOR = 16
"""Growth of the gallop's steps, a power of two. Most of a probe's time is waiting for memory: by sixteens, a
prefix of 6,000 blocks takes 16 of them, by twos 25."""


class _Shard:
    """Keys whose first bytes leave one remainder, with how many attached blocks have each."""

    __slots__ = ("counts", "mutex")

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.mutex = threading.Lock()


class HintIndex:
    """Counts attached blocks by window and key (paper, section 4.3). Thread-safe; takes no tree mutex.

    Updates take their shard's mutex. Look-ups take none: whether a dict has a key of bytes is one atomic
    operation of CPython, so a mutex would protect nothing. It would double the cost of a look-up, and let it
    wait for a writer that lost the interpreter while it held the mutex. Between two probes the index may
    change either way: a hint may be stale.

    Args:
        windows: how many there are; methods raise IndexError for others.
    """

    def __init__(self, windows: int = 1) -> None:
        self._windows = tuple(tuple(_Shard() for _ in range(SHARDS)) for _ in range(windows))

    def add(self, window: int, key: bytes) -> None:
        """A block with this key was attached."""
        shard = self._windows[window][key[0] % SHARDS]
        with shard.mutex:
            shard.counts[key] = shard.counts.get(key, 0) + 1

    def remove(self, window: int, key: bytes) -> None:
        """One was detached. ValueError if there is none."""
        shard = self._windows[window][key[0] % SHARDS]
        with shard.mutex:
            left = shard.counts.get(key, 0) - 1
            if left < 0:
                raise ValueError(f"key {key.hex()} of window {window} is not in the hint index")
            if left:
                shard.counts[key] = left
            else:
                del shard.counts[key]

    def has(self, window: int, key: bytes) -> bool:
        """Whether a block with this key is attached."""
        return key in self._windows[window][key[0] % SHARDS].counts

    def prefix(self, window: int, keys: Sequence[bytes], limit: int) -> int:
        """How many leading ``keys``, of the first ``limit``, are present, in a window that is a prefix tree.

        Gallops at powers of ``GALLOP_FACTOR`` until the first miss, then bisects: O(log n) probes. If a key may be
        present without those before it, the result is an ``n`` where presence ends: key ``n - 1`` is there
        (or ``n`` is 0) and key ``n`` is not (or ``n`` is ``limit``).
        """
        shards = self._windows[window]
        # Cut out here: a call of ``__getitem__`` for every probe would be a third of the look-up.
        packed = keys.packed if isinstance(keys, BlockKeys) else b"".join(keys)
        low, step = 0, 1
        while low < limit:
            probe = step if step < limit else limit
            key = packed[KEY_BYTES * (probe - 1) : KEY_BYTES * probe]
            if key not in shards[key[0] % SHARDS].counts:
                high = probe - 1
                while low < high:
                    middle = (low + high + 1) // 2
                    key = packed[KEY_BYTES * (middle - 1) : KEY_BYTES * middle]
                    if key in shards[key[0] % SHARDS].counts:
                        low = middle
                    else:
                        high = middle - 1
                return low
            low, step = probe, step * GALLOP_FACTOR
        return low

    def latest(self, window: int, keys: Sequence[bytes], below: int) -> int:
        """The largest ``n <= below`` whose ``keys[n - 1]`` is present, 0 if there is none (reverse scan)."""
        shards = self._windows[window]
        for n in range(below, 0, -1):
            key = keys[n - 1]
            if key in shards[key[0] % SHARDS].counts:
                return n
        return 0

    def counts(self, window: int) -> dict[bytes, int]:
        """A copy of all entries of a window."""
        merged: dict[bytes, int] = {}
        for shard in self._windows[window]:
            with shard.mutex:
                merged.update(shard.counts)
        return merged

    def check(self) -> None:
        """Raise AuditError unless every entry counts at least one block, in its own shard."""
        for window, shards in enumerate(self._windows):
            for number, shard in enumerate(shards):
                with shard.mutex:
                    for key, count in shard.counts.items():
                        if count < 1 or key[0] % SHARDS != number:
                            raise AuditError(
                                f"the hint index counts {count} of key {key.hex()} in window {window}"
                            )
