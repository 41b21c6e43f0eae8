"""What stands in the file of a disk tier: its header page and the record of each slot. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from wavepp_worker.block_keys import KEY_BYTES

PAGE_BYTES = 4096
_MAGIC = b"WavePPkv"
_VERSION = 2
_HEADER = struct.Struct("<8sIIQQQ")
_RECORD = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}sIIQQ")
_CHECKSUM = struct.Struct("<Q")
_EMPTY, _ROOT, _CHILD = 0, 1, 2


@dataclass(frozen=True)
class DiskRecord:
    """Which block a slot holds.

    Attributes:
        key: key of the block.
        parent: key of the block before it, None for a first block.
        generation: count of writes to the file when this one was made; the larger, the newer.
        checksum: xxh3 of the block's bytes.
        origin: what else its owner has to know of it.
    """

    key: bytes
    parent: bytes | None
    generation: int
    checksum: int
    origin: bytes = b""


def record_bytes(origin_bytes: int) -> int:
    """Bytes of a record whose origin has at most so many."""
    return _RECORD.size + origin_bytes + _CHECKSUM.size


def pack_record(slot: int, record: DiskRecord, origin_bytes: int) -> bytes:
    """``record_bytes(origin_bytes)`` bytes that are valid in this slot only. ValueError if the origin is longer."""
    if len(record.origin) > origin_bytes:
        raise ValueError(f"the origin has {len(record.origin)} bytes, a record takes {origin_bytes}")
    state, parent = (_ROOT, bytes(KEY_BYTES)) if record.parent is None else (_CHILD, record.parent)
    fields = _RECORD.pack(record.key, parent, state, len(record.origin), record.generation, record.checksum)
    fields += record.origin.ljust(origin_bytes, b"\0")
    return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields, slot))


def unpack_record(slot: int, stored: memoryview | bytes) -> DiskRecord | None:
    """The record of a slot; None if the slot is empty or the record was not written to its end."""
    if len(stored) < record_bytes(0):
        return None
    key, parent, state, length, generation, checksum = _RECORD.unpack_from(stored)
    if state == _EMPTY:
        return None
    end = len(stored) - _CHECKSUM.size
    (own,) = _CHECKSUM.unpack_from(stored, end)
    if own != xxhash.xxh3_64_intdigest(stored[:end], slot):
        return None
    origin = bytes(stored[_RECORD.size : _RECORD.size + length])
    return DiskRecord(key, None if state == _ROOT else parent, generation, checksum, origin)


def pack_header(slots: int, block_bytes: int, origin_bytes: int, fingerprint: str) -> bytes:
    """The first page of the file. ValueError if the fingerprint is too long for it."""
    text = fingerprint.encode()
    longest = PAGE_BYTES - _HEADER.size - _CHECKSUM.size
    if len(text) > longest:
        raise ValueError(
            f"the fingerprint has {len(text)} bytes, the header page takes {longest}; shorten it"
        )
    fields = _HEADER.pack(_MAGIC, _VERSION, len(text), block_bytes, slots, origin_bytes) + text
    page = fields.ljust(PAGE_BYTES - _CHECKSUM.size, b"\0")
    return page + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(page))


def is_ours(found: bytes) -> bool:
    """Whether a file that begins like this was a disk tier once, of whatever version, cut anywhere."""
    return found[: len(_MAGIC)] == _MAGIC[: len(found)]


def describe_header(header: bytes) -> str | None:
    """What an intact header says, None if it is not one of this version."""
    if len(header) < PAGE_BYTES:
        return None
    magic, version, length, block_bytes, slots, _ = _HEADER.unpack_from(header)
    page, (checksum,) = header[: -_CHECKSUM.size], _CHECKSUM.unpack(header[-_CHECKSUM.size :])
    if (magic, version, checksum) != (_MAGIC, _VERSION, xxhash.xxh3_64_intdigest(page)):
        return None
    fingerprint = header[_HEADER.size : _HEADER.size + length].decode()
    return f"{slots} blocks of {block_bytes} bytes of '{fingerprint}'"
