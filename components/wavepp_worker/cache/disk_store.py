"""The disk tier of one rank: fixed-size block slots in one memory-mapped file that outlives the process.

The file is a header page, a table of records (one per slot), then the slots. A record is written after its
bytes and carries their checksum and one of its own, so whatever instant the process or the machine stops
at, each slot afterwards reads as what was written or as nothing.

What an earlier process wrote is verified before a rank promises it to others (``damaged``), by the thread that leases;
every block is verified again when it is read.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from wavepp_worker.cache.disk_format import (
    PAGE_BYTES,
    RECORD_BYTES,
    DiskRecord,
    describe_header,
    pack_header,
    pack_record,
    unpack_record,
)
from wavepp_worker.errors import AuditError, CacheCorrupt, ConfigError


class DiskStore:
    """``slots`` blocks of ``block_bytes`` bytes in the file ``path``.

    For the thread that copies blocks, but for ``damaged``, which any thread may call.

    The whole file is allocated at once: writing to a mapped page the disk has no space for would kill the
    process instead of raising.

    Args:
        path: the file; it and its directory are created if missing.
        slots: number of blocks, at least 1.
        block_bytes: bytes of one block, at least 1.
        fingerprint: everything the meaning of the bytes depends on (model, dtype, layers, block size, rank).

    Raises:
        ConfigError: the file is another store's, in use, or cannot be created with this size. A file that
            is not exactly this store's is never overwritten: deleting it is left to its owner.
    """

    def __init__(self, path: Path, slots: int, block_bytes: int, fingerprint: str) -> None:
        if slots < 1 or block_bytes < 1:
            raise ValueError(f"{slots} slots of {block_bytes} bytes; both must be at least 1")
        self.path = path
        self.slots = slots
        self.block_bytes = block_bytes
        self._data = -(-(PAGE_BYTES + slots * RECORD_BYTES) // PAGE_BYTES) * PAGE_BYTES
        header = pack_header(slots, block_bytes, fingerprint)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._lock()
            self._create_or_verify(header)
            self._map = mmap.mmap(self._file, self._data + slots * block_bytes)
        except OSError as error:
            os.close(self._file)
            raise _unusable(path, error) from error
        except ConfigError:
            os.close(self._file)
            raise
        self._view = memoryview(self._map)
        found = list(self._valid())
        self._generation = max((record.generation for _, record in found), default=0)
        self._unread = {slot for slot, _ in found}

    def records(self) -> list[tuple[int, int | None, int]]:
        """``(key, parent key or None, slot)`` of every block in the file, in the order they were written.

        Of several with one key only the newest. Only the records are verified here: reading all blocks
        would delay the start by the size of the file.
        """
        newest: dict[int, tuple[int | None, int]] = {}
        for slot, record in sorted(self._valid(), key=lambda entry: entry[1].generation):
            newest.pop(record.key, None)
            newest[record.key] = (record.parent, slot)
        return [(key, parent, slot) for key, (parent, slot) in newest.items()]

    def write(self, slot: int, key: int, parent: int | None, payload: Any) -> None:
        """Store a block in ``slot``, in place of what was there.

        Args:
            slot: ``0 … slots - 1``.
            key: unsigned 64-bit key of the block.
            parent: key of the block before it, None for a first block.
            payload: contiguous buffer of ``block_bytes`` bytes.

        Raises:
            ValueError: no such slot, or the payload has another size.
        """
        source = self._buffer(payload)
        self._unread.discard(slot)
        self.drop(slot)
        self._bytes(slot)[:] = source
        self._generation += 1
        record = DiskRecord(key, parent, self._generation, xxhash.xxh3_64_intdigest(source))
        self._record_bytes(slot)[:] = pack_record(slot, record)

    def read_into(self, slot: int, key: int, out: Any) -> None:
        """Copy the block of ``key`` from ``slot`` to ``out``, a writable buffer of ``block_bytes`` bytes.

        Raises:
            CacheCorrupt: the slot does not hold that block intact. The record is invalid from then on, and
                what is in ``out`` is undefined.
            ValueError: no such slot, or ``out`` has another size.
        """
        target = self._buffer(out)
        record = self._record(slot)
        if record is None or record.key != key:
            held = "no block" if record is None else f"block {record.key:#x}"
            raise self._corrupt(slot, f"holds {held} where block {key:#x} was asked for")
        target[:] = self._bytes(slot)
        # Of the copy, not of the file: these are the bytes that get used.
        if xxhash.xxh3_64_intdigest(target) != record.checksum:
            raise self._corrupt(slot, f"has bytes of block {key:#x} that do not match their checksum")

    def damaged(self, slot: int, key: int) -> bool:
        """Whether ``slot`` holds the block of ``key`` from before this process, but not intact; it is dropped then.

        Another thread may write to other slots meanwhile, or be about to write this block to this one. Reads a
        block once only, and so brings it into the page cache.
        """
        if slot not in self._unread:
            return False
        record = self._record(slot)
        if record is None or record.key != key:
            return False
        self._unread.discard(slot)
        if xxhash.xxh3_64_intdigest(self._bytes(slot)) == record.checksum:
            return False
        self.drop(slot)
        return True

    def drop(self, slot: int) -> None:
        """Forget what is in ``slot``. ValueError if there is no such slot."""
        self._record_bytes(slot)[:] = bytes(RECORD_BYTES)

    def check(self) -> None:
        """Raise AuditError unless every recorded block matches its checksum. Reads all of them."""
        for slot, record in self._valid():
            if xxhash.xxh3_64_intdigest(self._bytes(slot)) != record.checksum:
                raise AuditError(f"slot {slot} of {self.path} does not hold what its record says")

    def close(self) -> None:
        """Let go of the file, so that another can open it; the kernel writes the rest back. Idempotent."""
        if not self._map.closed:
            self._view.release()
            self._map.close()
            os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"disk_path: {self.path} is in use by another process; each rank of each replica needs its "
                "own, so give this replica another disk_path or stop the other one"
            ) from error

    def _create_or_verify(self, header: bytes) -> None:
        size = self._data + self.slots * self.block_bytes
        status = os.fstat(self._file)
        found = os.pread(self._file, PAGE_BYTES, 0)
        # All zeros: allocated by a process that died before it wrote the header.
        if any(found):
            self._verify(found, header, status.st_size, size)
            return
        free = os.fstatvfs(self._file)
        missing = size - status.st_blocks * 512
        if missing > free.f_bavail * free.f_frsize:
            raise OSError(
                errno.ENOSPC, f"{missing} bytes are needed, {free.f_bavail * free.f_frsize} are free"
            )
        try:
            os.posix_fallocate(self._file, 0, size)
            os.ftruncate(self._file, size)
        except OSError:
            os.ftruncate(self._file, 0)
            raise
        os.pwrite(self._file, header, 0)

    def _verify(self, found: bytes, header: bytes, found_size: int, size: int) -> None:
        if found == header and found_size == size:
            return
        made_for = describe_header(found)
        if made_for is None:
            reason = "is not an intact disk cache of this version"
        elif found != header:
            reason = f"was made for {made_for}, this rank needs {describe_header(header)}"
        else:
            reason = f"has {found_size} bytes instead of {size}; it was cut off"
        raise ConfigError(f"disk_path: {self.path} {reason}; delete the file or give another disk_path")

    def _valid(self) -> Iterator[tuple[int, DiskRecord]]:
        for slot in range(self.slots):
            record = self._record(slot)
            if record is not None:
                yield slot, record

    def _record(self, slot: int) -> DiskRecord | None:
        return unpack_record(slot, self._record_bytes(slot))

    def _record_bytes(self, slot: int) -> memoryview:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} does not exist; {self.path} has {self.slots}")
        start = PAGE_BYTES + slot * RECORD_BYTES
        return self._view[start : start + RECORD_BYTES]

    def _bytes(self, slot: int) -> memoryview:
        start = self._data + slot * self.block_bytes
        return self._view[start : start + self.block_bytes]

    def _buffer(self, buffer: Any) -> memoryview:
        view = memoryview(buffer).cast("B")
        if view.nbytes != self.block_bytes:
            raise ValueError(f"the buffer has {view.nbytes} bytes, a block has {self.block_bytes}")
        return view

    def _corrupt(self, slot: int, what: str) -> CacheCorrupt:
        self.drop(slot)
        return CacheCorrupt(
            f"slot {slot} of {self.path} {what}; that copy is dropped and the block has to be computed "
            "again. If it happens again, check the disk and delete the file"
        )


def _unusable(path: Path, error: OSError) -> ConfigError:
    hint = {
        errno.ENOSPC: "lower disk_kv_tokens or give a disk_path with more space",
        errno.EDQUOT: "lower disk_kv_tokens or give a disk_path with more space",
        errno.EFBIG: "lower disk_kv_tokens or give a disk_path that allows larger files",
    }.get(error.errno or 0, "give a disk_path this process can create files in")
    return ConfigError(f"disk_path: cannot use {path} as disk cache: {error.strerror}; {hint}")
