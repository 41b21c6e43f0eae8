"""Opens the file of a disk tier: locked, with the header of who needs it, and allocated as a whole."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.tiers.disk_format import PAGE_BYTES, describe_header, is_ours

logger = logging.getLogger(__name__)


def open_file(path: Path, header: bytes, size: int) -> int:
    """The descriptor of a file of ``size`` bytes that begins with ``header``, which nobody else has open.

    A file that was cut off is made whole again. One with another header begins anew, with a warning that says so.

    Raises:
        ConfigError: the file is no disk tier at all, in use, another user's, or cannot be created with this size.
        OSError: the disk cannot read or write (EIO).
    """
    file = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        _check_owner(path, file)
        _lock(path, file)
        _create_or_verify(path, file, header, size)
    except (OSError, ConfigError) as error:
        if file is not None:
            os.close(file)
        if isinstance(error, ConfigError) or error.errno == errno.EIO:
            raise
        raise unusable(path, error) from error
    return file


def write_all(file: int, source: memoryview, start: int) -> None:
    """Write all of ``source`` from byte ``start`` on. OSError if the disk does not take it."""
    while source:
        count = os.pwrite(file, source, start)
        source, start = source[count:], start + count


def unusable(path: Path, error: OSError) -> ConfigError:
    """The sentence for a file that the operating system refuses, and what to change."""
    hint = {
        errno.ENOSPC: "lower disk_kv_tokens or give a disk_path with more space",
        errno.EDQUOT: "lower disk_kv_tokens or give a disk_path with more space",
        errno.EFBIG: "lower disk_kv_tokens or give a disk_path that allows larger files",
    }.get(error.errno or 0, "give a disk_path this process can create files in")
    return ConfigError(f"disk_path: cannot use {path} as disk cache: {error.strerror}; {hint}")


def _check_owner(path: Path, file: int) -> None:
    """Refuse what somebody else has put there: its owner reads all KV, and can write any under the keys it finds."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(
            f"disk_path: {path} is not a file of this user, and whose it is can read and change what is cached; "
            "delete it, or give a disk_path that only this user can write to"
        )
    os.fchmod(file, 0o600)


def _lock(path: Path, file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"disk_path: {path} is in use by another process; each rank of each replica needs its "
            "own, so give this replica another disk_path or stop the other one"
        ) from error


def _create_or_verify(path: Path, file: int, header: bytes, size: int) -> None:
    found, found_size = os.pread(file, PAGE_BYTES, 0), os.fstat(file).st_size
    if found == header:
        if found_size != size:
            logger.warning(
                "%s has %d bytes instead of %d: what is missing is computed again",
                path,
                found_size,
                size,
            )
            _allocate(file, size)
        return
    # All zeros: allocated by a process that died before it wrote the header.
    if any(found):
        if not is_ours(found):
            raise ConfigError(
                f"disk_path: {path} is not a disk cache; delete the file or give another disk_path"
            )
        made_for = describe_header(found) or "another version, or is damaged"
        logger.warning(
            "%s begins anew: it was made for %s, this rank needs %s",
            path,
            made_for,
            describe_header(header),
        )
    os.ftruncate(file, 0)
    _allocate(file, size)
    write_all(file, memoryview(header), 0)


def _allocate(file: int, size: int) -> None:
    free = os.fstatvfs(file)
    missing = size - os.fstat(file).st_blocks * 512
    if missing > free.f_bavail * free.f_frsize:
        raise OSError(errno.ENOSPC, f"{missing} bytes are needed, {free.f_bavail * free.f_frsize} are free")
    try:
        os.posix_fallocate(file, 0, size)
        os.ftruncate(file, size)
    except OSError:
        os.ftruncate(file, 0)
        raise
