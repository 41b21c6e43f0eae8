"""The disk tier of one rank: fixed-size block slots in one file that outlives the process.

The file is a header page, a table of records (one per slot), then the slots. A record is written after its
bytes and carries their checksum and one of its own, so whatever instant the process or the machine stops
at, each slot afterwards reads as what was written or as nothing. Every block is verified when it is read.

The file is read and written by system calls and not mapped: a page that the disk cannot give or take, or that somebody
cut off, is an error here, where it would kill a process that mapped it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from wavepp_worker.errors import AuditError, CacheCorrupt
from wavepp_worker.runtime.tiers.disk_file import open_file, unusable, write_all
from wavepp_worker.runtime.tiers.disk_format import (
    PAGE_BYTES,
    DiskRecord,
    pack_header,
    pack_record,
    record_bytes,
    unpack_record,
)

TABLE_READ_BYTES = 1 << 20
"""How much of the table of records is read at once, about."""


class StoredSlot(NamedTuple):
    """A block in the file."""

    key: bytes
    parent: bytes | None
    slot: int
    origin: bytes


class DiskStore:
    """``slots`` blocks of ``block_bytes`` bytes in the file ``path``.

    One thread may write while others read blocks that it does not write. The whole file is allocated at once, so that
    a disk that others fill does not fail it later.

    Args:
        path: the file; it (mode 0600) and its directory (0700) are created if missing.
        slots: number of blocks, at least 1.
        block_bytes: bytes of one block, at least 1.
        fingerprint: everything the meaning of the bytes depends on (model, dtype, layers, block size, rank).
        origin_bytes: most bytes its owner keeps beside a block.

    A file that was cut off is made whole again; what is missing reads as nothing. One that is another rank's, of
    another size or of another version begins anew, with a warning that says so: it is a cache.

    Raises:
        ConfigError: the file is no disk tier at all, in use, or cannot be created with this size.
        OSError: the disk cannot read or write (EIO).
    """

    def __init__(
        self, path: Path, slots: int, block_bytes: int, fingerprint: str, origin_bytes: int = 0
    ) -> None:
        if slots < 1 or block_bytes < 1:
            raise ValueError(f"{slots} slots of {block_bytes} bytes; both must be at least 1")
        self.path = path
        self.slots = slots
        self.block_bytes = block_bytes
        self._origin_bytes = origin_bytes
        self._record_bytes = record_bytes(origin_bytes)
        self._data = -(-(PAGE_BYTES + slots * self._record_bytes) // PAGE_BYTES) * PAGE_BYTES
        header = pack_header(slots, block_bytes, origin_bytes, fingerprint)
        self._file = open_file(path, header, self._data + slots * block_bytes)
        try:
            self._generation = max((record.generation for _, record in self._valid()), default=0)
        except OSError as error:
            os.close(self._file)
            if error.errno == errno.EIO:
                raise
            raise unusable(path, error) from error
        self._open = True

    def records(self) -> list[StoredSlot]:
        """Every block in the file, in the order they were written; of several with one key only the newest.

        Only the records are verified here: reading all blocks would delay the start by the size of the file.
        """
        newest: dict[bytes, StoredSlot] = {}
        for slot, record in sorted(self._valid(), key=lambda entry: entry[1].generation):
            newest.pop(record.key, None)
            newest[record.key] = StoredSlot(record.key, record.parent, slot, record.origin)
        return list(newest.values())

    def write(self, slot: int, key: bytes, parent: bytes | None, payload: Any, origin: bytes = b"") -> None:
        """Store a block in ``slot``, in place of what was there.

        Args:
            slot: ``0 … slots - 1``.
            key: key of the block.
            parent: key of the block before it, None for a first block.
            payload: contiguous buffer of ``block_bytes`` bytes.
            origin: what ``records`` gives back with it, at most ``origin_bytes`` bytes.

        Raises:
            OSError: the file cannot be written; the slot holds nothing, or still what it held.
            ValueError: no such slot, or payload or origin have another size.
        """
        source = self._buffer(payload)
        record = DiskRecord(key, parent, self._generation + 1, xxhash.xxh3_64_intdigest(source), origin)
        packed = pack_record(slot, record, self._origin_bytes)
        self.drop(slot)
        write_all(self._file, source, self._block_at(slot))
        self._generation += 1
        write_all(self._file, memoryview(packed), self._record_at(slot))

    def read_into(self, slot: int, key: bytes, out: Any) -> None:
        """Copy the block of ``key`` from ``slot`` to ``out``, a writable buffer of ``block_bytes`` bytes.

        Raises:
            CacheCorrupt: the slot does not hold that block intact. What is in ``out`` is undefined.
            OSError: the file cannot be read, or was cut off before the end of the block.
            ValueError: no such slot, or ``out`` has another size.
        """
        target = self._buffer(out)
        stored = os.pread(self._file, self._record_bytes, self._record_at(slot))
        if len(stored) < self._record_bytes:
            raise _cut_off()
        record = unpack_record(slot, stored)
        if record is None or record.key != key:
            held = "no block" if record is None else f"block {record.key.hex()}"
            raise self._corrupt(slot, f"holds {held} where block {key.hex()} was asked for")
        start, done = self._block_at(slot), 0
        while done < self.block_bytes:
            count = os.preadv(self._file, [target[done:]], start + done)
            if not count:
                raise _cut_off()
            done += count
        # Of the copy, not of the file: these are the bytes that get used.
        if xxhash.xxh3_64_intdigest(target) != record.checksum:
            raise self._corrupt(slot, f"has bytes of block {key.hex()} that do not match their checksum")

    def drop(self, slot: int) -> None:
        """Forget what is in ``slot``. OSError if the file cannot be written, ValueError if there is no such slot."""
        write_all(self._file, memoryview(bytes(self._record_bytes)), self._record_at(slot))

    def keep_only(self, slots: Collection[int]) -> None:
        """Forget what is in all other slots. OSError if the file cannot be read or written."""
        width = self._record_bytes
        several = max(1, TABLE_READ_BYTES // width)
        for first in range(0, self.slots, several):
            count = min(several, self.slots - first)
            table = os.pread(self._file, count * width, self._record_at(first))
            kept = bytearray(count * width)
            for at in range(0, len(table), width):
                if first + at // width in slots:
                    kept[at : at + width] = table[at : at + width]
            if any(table):
                write_all(self._file, memoryview(kept), self._record_at(first))

    def check(self) -> None:
        """Raise AuditError unless every recorded block matches its checksum. Reads all of them."""
        out = bytearray(self.block_bytes)
        for slot, record in self._valid():
            try:
                self.read_into(slot, record.key, out)
            except CacheCorrupt as error:
                raise AuditError(f"slot {slot} of {self.path} does not hold what its record says") from error

    def close(self) -> None:
        """Let go of the file, so that another can open it; the kernel writes the rest back. Idempotent."""
        if self._open:
            self._open = False
            os.close(self._file)

    def _valid(self) -> Iterator[tuple[int, DiskRecord]]:
        width = self._record_bytes
        several = max(1, TABLE_READ_BYTES // width)
        for first in range(0, self.slots, several):
            count = min(several, self.slots - first)
            table = memoryview(os.pread(self._file, count * width, self._record_at(first)))
            for at in range(count):
                record = unpack_record(first + at, table[at * width : (at + 1) * width])
                if record is not None:
                    yield first + at, record

    def _record_at(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} does not exist; {self.path} has {self.slots}")
        return PAGE_BYTES + slot * self._record_bytes

    def _block_at(self, slot: int) -> int:
        return self._data + slot * self.block_bytes

    def _buffer(self, buffer: Any) -> memoryview:
        view = memoryview(buffer).cast("B")
        if view.nbytes != self.block_bytes:
            raise ValueError(f"the buffer has {view.nbytes} bytes, a block has {self.block_bytes}")
        return view

    def _corrupt(self, slot: int, what: str) -> CacheCorrupt:
        return CacheCorrupt(
            f"slot {slot} of {self.path} {what}; the block has to be computed again. If it happens again, check the "
            "disk and delete the file"
        )


def _cut_off() -> OSError:
    return OSError(errno.EIO, "the file was cut off")
