"""One window's disk tier as the rest of a rank sees it: it may lose blocks or fail, and nobody fails with it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from wavepp_worker.cache.moves import Copy
from wavepp_worker.errors import CacheCorrupt
from wavepp_worker.runtime.tiers.disk_store import DiskStore, StoredSlot

logger = logging.getLogger(__name__)

_Place = tuple[int, bytes]


class DiskTier:
    """Blocks in a ``DiskStore``, and copies in memory of those that requests lease.

    What a rank promises to the others cannot be lost on disk any more: it is *prefetched*, which means read and
    verified before, and kept in memory until the request's own blocks are filled with it. That is never more than the
    device holds, because every block that is leased on disk has its room on the device reserved.

    The first error of the disk itself switches the tier off, with one warning: from then on it takes nothing and gives
    nothing, beside what is prefetched. WAVE prefetches; the thread that copies writes and reads. Thread-safe.

    Args:
        path, slots, block_bytes, fingerprint, origin_bytes: see ``DiskStore``.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self, path: Path, slots: int, block_bytes: int, fingerprint: str, origin_bytes: int = 0
    ) -> None:
        self.slots = slots
        self._path = path
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._prefetched: dict[_Place, bytearray] = {}
        self._holders: dict[_Place, set[str]] = {}
        self._held: dict[str, list[_Place]] = {}
        self._off = False
        self._store: DiskStore | None = None
        try:
            self._store = DiskStore(path, slots, block_bytes, fingerprint, origin_bytes)
        except OSError as error:
            self._switch_off(error)

    @property
    def off(self) -> bool:
        """Whether the disk has failed."""
        return self._off

    @property
    def prefetched(self) -> int:
        """Blocks that are kept in memory for requests."""
        return len(self._prefetched)

    def restore(self) -> list[StoredSlot]:
        """What an earlier process left; see ``DiskStore.records``."""
        if self._store is None:
            return []
        try:
            return self._store.records()
        except OSError as error:
            self._switch_off(error)
            return []

    def write(self, slot: int, key: bytes, parent: bytes | None, payload: Any, origin: bytes = b"") -> bool:
        """Store a block; False if the disk has failed, and the slot holds nothing of use."""
        if self._off or self._store is None:
            return False
        try:
            self._store.write(slot, key, parent, payload, origin)
        except OSError as error:
            self._switch_off(error)
            return False
        return True

    def read_into(self, slot: int, key: bytes, out: Any) -> bool:
        """Copy a block to ``out``, from memory if it is prefetched, and let go of the prefetched copy.

        Returns False if it is not prefetched and the disk has lost it.
        """
        with self._lock:
            prefetched = self._prefetched.pop((slot, key), None)
            self._holders.pop((slot, key), None)
        if prefetched is None:
            return self._read(slot, key, out, drop=True)
        memoryview(out).cast("B")[:] = prefetched
        return True

    def prefetch(self, request_id: str, copies: Iterable[Copy]) -> list[Copy]:
        """Read blocks into memory for a request; returns those that are not there intact.

        No write to these slots is under way, and none begins while the request leases them.
        """
        lost = []
        for copy in copies:
            place = (copy.slot, copy.key)
            if self._hold(place, request_id):
                continue
            content = bytearray(self._block_bytes)
            if not self._read(copy.slot, copy.key, content, drop=False):
                lost.append(copy)
                continue
            with self._lock:
                self._prefetched[place] = content
                self._holders[place] = set()
            self._hold(place, request_id)
        return lost

    def drop_prefetched(self, request_id: str) -> None:
        """A request has its blocks, or holds none any more: forget what only it needed."""
        with self._lock:
            for place in self._held.pop(request_id, []):
                holders = self._holders.get(place, set())
                holders.discard(request_id)
                if not holders:
                    self._prefetched.pop(place, None)
                    self._holders.pop(place, None)

    def keep_only(self, slots: Collection[int]) -> None:
        """Forget what is in all other slots, for later processes as well."""
        if self._off or self._store is None:
            return
        try:
            self._store.keep_only(slots)
        except OSError as error:
            self._switch_off(error)

    def check(self) -> None:
        """Raise AuditError unless every block on disk is intact. Reads all of them."""
        if self._store is not None and not self._off:
            self._store.check()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._store is not None:
            self._store.close()

    def _hold(self, place: _Place, request_id: str) -> bool:
        with self._lock:
            if place not in self._prefetched:
                return False
            self._holders[place].add(request_id)
            self._held.setdefault(request_id, []).append(place)
            return True

    def _read(self, slot: int, key: bytes, out: Any, drop: bool) -> bool:
        """``drop``: nobody else writes to the slot meanwhile, so that a damaged record can be taken out."""
        if self._off or self._store is None:
            return False
        try:
            self._store.read_into(slot, key, out)
        except CacheCorrupt:
            if drop:
                with contextlib.suppress(OSError):
                    self._store.drop(slot)
            return False
        except OSError as error:
            self._switch_off(error)
            return False
        return True

    def _switch_off(self, error: OSError) -> None:
        with self._lock:
            if self._off:
                return
            self._off = True
        logger.warning(
            "the disk tier %s is switched off until the next start (%s): its blocks are computed again; check the disk",
            self._path,
            error.strerror or error,
        )
