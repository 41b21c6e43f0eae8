"""Which prefixes are asked for again and again, as far as the latest requests tell. Pure."""

from __future__ import annotations

from collections import Counter, deque

from wavepp_worker.block_keys import BlockKeys

LATEST = 256
"""Admissions that are remembered."""
POPULAR = 2
"""Of those, how many resumed after a prefix that is popular: another one is to be expected soon."""
ARRIVALS = 128
"""That tell how likely the next one wants a prefix: what was wanted before may be over."""


class PopularPrefixes:
    """Counts by its last block how often a prefix was reused, and how often it was wanted. Lengths are in blocks."""

    def __init__(self) -> None:
        self._latest: deque[tuple[bytes, bytes, int]] = deque()
        self._counts: Counter[bytes] = Counter()
        self._popular: dict[bytes, dict[bytes, int]] = {}
        self._arrivals: deque[bytes] = deque()
        self._wanted: Counter[bytes] = Counter()

    def arrived(self, keys: BlockKeys) -> None:
        """A request came, which begins with a popular prefix or does not."""
        end = self.end(keys)
        last = keys[end - 1] if end else b""
        self._arrivals.append(last)
        self._wanted[last] += 1
        if len(self._arrivals) > ARRIVALS:
            gone = self._arrivals.popleft()
            self._wanted[gone] -= 1
            if not self._wanted[gone]:
                del self._wanted[gone]

    def reused(self, keys: BlockKeys, end: int) -> None:
        """A request was admitted that reuses the first ``end`` of its blocks."""
        if end:
            first, last = keys[0], keys[end - 1]
            self._latest.append((first, last, end))
            self._counts[last] += 1
            if self._counts[last] == POPULAR:
                self._popular.setdefault(first, {})[last] = end
        else:
            self._latest.append((b"", b"", 0))
        if len(self._latest) > LATEST:
            self._forget(*self._latest.popleft())

    def end(self, keys: BlockKeys) -> int:
        """The longest popular prefix that a prompt with these keys begins with."""
        known = self._popular.get(keys[0]) if keys else None
        if known is None:
            return 0
        return max(
            (end for last, end in known.items() if end <= len(keys) and keys[end - 1] == last), default=0
        )

    def share(self, keys: BlockKeys) -> float:
        """How likely the next one who comes wants the longest popular prefix that the prompt of one who waits has.

        That one wants it itself, and is asked about therefore: it does not count.
        """
        end = self.end(keys)
        if not end:
            return 0.0
        others = self._wanted.get(keys[end - 1], 0) - 1
        return max(0, others) / max(1, len(self._arrivals) - 1)

    def _forget(self, first: bytes, last: bytes, end: int) -> None:
        if not end:
            return
        self._counts[last] -= 1
        if self._counts[last] == POPULAR - 1:
            del self._popular[first][last]
            if not self._popular[first]:
                del self._popular[first]
        if not self._counts[last]:
            del self._counts[last]
