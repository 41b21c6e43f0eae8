"""Which prefixes are asked for again and again, as far as the latest admissions tell. Pure."""

from __future__ import annotations

from collections import Counter, deque

from wavepp_worker.block_keys import BlockKeys

LATEST = 256
"""Admissions that are remembered."""
POPULAR = 2
"""Of those, how many resumed after a prefix that is popular: another one is to be expected soon."""


class PopularPrefixes:
    """Counts by its last block how often a prefix was reused. Lengths are in blocks."""

    def __init__(self) -> None:
        self._latest: deque[tuple[bytes, bytes, int, bool]] = deque()
        self._fresh = 0
        self._counts: Counter[bytes] = Counter()
        self._popular: dict[bytes, dict[bytes, int]] = {}

    def reused(self, keys: BlockKeys, end: int, *, fresh: bool) -> None:
        """A request was admitted that reuses the first ``end`` of its blocks; ``fresh``: it computes much itself."""
        if end:
            first, last = keys[0], keys[end - 1]
            self._latest.append((first, last, end, fresh))
            self._counts[last] += 1
            if self._counts[last] == POPULAR:
                self._popular.setdefault(first, {})[last] = end
        else:
            self._latest.append((b"", b"", 0, fresh))
        self._fresh += fresh
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
        """How likely one who computes much itself wants the longest popular prefix that a prompt with these keys has.

        An estimate: it is reused about as often as it is asked for while it is there. One that was reused twice is
        popular by chance where there are many, so of its reuses one does not count.
        """
        end = self.end(keys)
        if not end:
            return 0.0
        return min(1.0, (self._counts[keys[end - 1]] - 1) / max(1, self._fresh))

    def _forget(self, first: bytes, last: bytes, end: int, fresh: bool) -> None:
        self._fresh -= fresh
        if not end:
            return
        self._counts[last] -= 1
        if self._counts[last] == POPULAR - 1:
            del self._popular[first][last]
            if not self._popular[first]:
                del self._popular[first]
        if not self._counts[last]:
            del self._counts[last]
