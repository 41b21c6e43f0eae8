"""A cryptographic digest of every byte of some files, remembered, so that only the first start reads all weights."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.user_cache import cache_root, keep, make_folder, read_kept

logger = logging.getLogger(__name__)

PIECE_BYTES = 16 << 20
"""A file is hashed in pieces of this size, by several threads: its digest is that of its pieces' digests."""
MAX_THREADS = 8
REMEMBERED_BYTES = 16 << 20
"""From this size on, reading a file takes longer than finding out that it has not changed."""
SHOWN_BYTES = 1 << 30
"""From this size on, the progress of reading files is shown."""
SETTLED_NS = 2_000_000_000
"""A file is remembered only if nothing wrote to it for so long before it was read: file systems keep coarse times."""
LOCK_SECONDS = 900.0
"""How long a process waits for another one of the same user that reads files, before it reads them as well."""


class _Entry(msgspec.Struct, frozen=True):
    """What is remembered of a file; it counts while all but the digest is as it was."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    digest: str


Advance = Callable[[int], None]


def file_digests(files: Sequence[Path]) -> list[str]:
    """64 hex digits of each file.

    Files of ``REMEMBERED_BYTES`` or more are looked up by path, size, times and inode in the user's cache directory.
    Processes that start together wait for the first of them. A cache that cannot be read or written is done without.

    Raises:
        ConfigError: a file cannot be read, or changes meanwhile.
    """
    try:
        found = {file: _remembered(file) for file in files}
        missing = [file for file, digest in found.items() if digest is None]
        if missing:
            with _alone(any(file.stat().st_size >= REMEMBERED_BYTES for file in missing)):
                found |= {file: _remembered(file) for file in missing}
                found |= _read([file for file, digest in found.items() if digest is None])
    except OSError as error:
        names = error.filename or ", ".join(str(file) for file in files)
        raise ConfigError(
            f"model: {names} cannot be read ({error.strerror}); let this user read it, or give another model"
        ) from error
    return [digest for file in files if (digest := found[file]) is not None]


def _read(files: Sequence[Path]) -> dict[Path, str]:
    total = sum(file.stat().st_size for file in files)
    with (
        ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "digest") as pool,
        _progress(total) as advance,
    ):
        return {file: _digest(file, pool, advance) for file in files}


def _digest(file: Path, pool: ThreadPoolExecutor, advance: Advance) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before, now_ns = os.fstat(descriptor), time.time_ns()
        whole = hashlib.sha256(before.st_size.to_bytes(8, "little"))

        def piece(start: int) -> bytes:
            length = min(PIECE_BYTES, before.st_size - start)
            content = memoryview(bytearray(length))
            done = 0
            while done < length and (count := os.preadv(descriptor, [content[done:]], start + done)):
                done += count
            advance(length)
            return hashlib.sha256(content[:done]).digest()

        for digest in pool.map(piece, range(0, before.st_size, PIECE_BYTES)):
            whole.update(digest)
        if _identity(file, before) != _identity(file, os.fstat(descriptor)):
            raise ConfigError(f"model: {file} changes while it is read; start again when it is complete")
    finally:
        os.close(descriptor)
    entry = msgspec.structs.replace(_identity(file, before), digest=whole.hexdigest())
    if max(entry.mtime_ns, entry.ctime_ns) < now_ns - SETTLED_NS:
        _remember(file, entry)
    return entry.digest


def _identity(file: Path, status: os.stat_result) -> _Entry:
    return _Entry(
        path=str(file.resolve()),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        device=status.st_dev,
        digest="",
    )


def _folder() -> Path:
    return cache_root() / "digests"


def _entry_file(file: Path) -> Path:
    return _folder() / (hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:32] + ".json")


def _remembered(file: Path) -> str | None:
    """The digest of a file that is as it was; None if it is not known, or others may have written it."""
    identity = _identity(file, file.stat())
    kept = read_kept(_entry_file(file), 1 << 16)
    if kept is None:
        return None
    try:
        entry = msgspec.json.decode(kept, type=_Entry)
        digest = bytes.fromhex(entry.digest)
    except (ValueError, msgspec.MsgspecError):
        return None
    known = (
        msgspec.structs.replace(entry, digest="") == identity and len(digest) == hashlib.sha256().digest_size
    )
    return entry.digest if known else None


def _remember(file: Path, entry: _Entry) -> None:
    if entry.size >= REMEMBERED_BYTES:
        keep(_entry_file(file), msgspec.json.encode(entry))


@contextlib.contextmanager
def _alone(large: bool) -> Iterator[None]:
    """Large files are read by one process of a user at a time; not for ever, and not if that cannot be arranged."""
    lock = None
    if large:
        with contextlib.suppress(OSError):
            make_folder(_folder())
            lock = os.open(_folder() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while lock is not None and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        yield
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Advance]:
    if total < SHOWN_BYTES:
        yield lambda _: None
        return
    logger.info("reading %.1f GB of weights to identify them; later starts remember it", total / 1e9)
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("Identifying the weights (once)", total=total)
        yield lambda count: bar.advance(task, count)
