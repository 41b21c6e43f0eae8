"""What stands in the file of a disk tier: its header page and the record of each slot. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

PAGE_BYTES = 4096
_MAGIC = b"WavePPkv"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ")
_RECORD = struct.Struct("<QQQQQ")
_CHECKSUM = struct.Struct("<Q")
RECORD_BYTES = _RECORD.size + _CHECKSUM.size
_EMPTY, _ROOT, _CHILD = 0, 1, 2


@dataclass(frozen=True)
class DiskRecord:
    """Which block a slot holds.

    Attributes:
        key: chained hash of the block.
        parent: key of the block before it, None for a first block.
        generation: count of writes to the file when this one was made; the larger, the newer.
        checksum: xxh3 of the block's bytes.
    """

    key: int
    parent: int | None
    generation: int
    checksum: int


def pack_record(slot: int, record: DiskRecord) -> bytes:
    """``RECORD_BYTES`` bytes that are valid in this slot only."""
    state, parent = (_ROOT, 0) if record.parent is None else (_CHILD, record.parent)
    fields = _RECORD.pack(record.key, parent, state, record.generation, record.checksum)
    return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields, slot))


def unpack_record(slot: int, stored: memoryview) -> DiskRecord | None:
    """The record of a slot; None if the slot is empty or the record was not written to its end."""
    key, parent, state, generation, checksum = _RECORD.unpack_from(stored)
    if state == _EMPTY:
        return None
    (own,) = _CHECKSUM.unpack_from(stored, _RECORD.size)
    if own != xxhash.xxh3_64_intdigest(stored[: _RECORD.size], slot):
        return None
    return DiskRecord(key, None if state == _ROOT else parent, generation, checksum)


def pack_header(slots: int, block_bytes: int, fingerprint: str) -> bytes:
    """The first page of the file. ValueError if the fingerprint is too long for it."""
    text = fingerprint.encode()
    longest = PAGE_BYTES - _HEADER.size - _CHECKSUM.size
    if len(text) > longest:
        raise ValueError(
            f"the fingerprint has {len(text)} bytes, the header page takes {longest}; shorten it"
        )
    fields = _HEADER.pack(_MAGIC, _VERSION, len(text), block_bytes, slots) + text
    page = fields.ljust(PAGE_BYTES - _CHECKSUM.size, b"\0")
    return page + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(page))


def describe_header(header: bytes) -> str | None:
    """What an intact header says, None if it is not one."""
    if len(header) < PAGE_BYTES:
        return None
    magic, version, length, block_bytes, slots = _HEADER.unpack_from(header)
    page, (checksum,) = header[: -_CHECKSUM.size], _CHECKSUM.unpack(header[-_CHECKSUM.size :])
    if (magic, version, checksum) != (_MAGIC, _VERSION, xxhash.xxh3_64_intdigest(page)):
        return None
    fingerprint = header[_HEADER.size : _HEADER.size + length].decode()
    return f"{slots} blocks of {block_bytes} bytes of '{fingerprint}'"
