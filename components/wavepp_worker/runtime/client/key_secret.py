"""The secret that a replica makes the keys of its blocks with: drawn anew, or kept beside a disk tier."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from pathlib import Path

from wavepp_worker.block_keys import SECRET_BYTES
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.protocol.engine_config import EngineConfig

logger = logging.getLogger(__name__)

SECRET_FILE = "keys.secret"
"""In ``disk_path``, readable by its owner alone."""


def key_secret(config: EngineConfig) -> bytes:
    """``SECRET_BYTES`` random bytes. Where a disk tier survives a restart, they do as well.

    One that the disk has damaged is replaced, with a warning: what was kept under it is computed again.

    Raises:
        ConfigError: the file beside the disk tier cannot be made or read, is another's, or open to others.
    """
    if config.disk_path is None:
        return secrets.token_bytes(SECRET_BYTES)
    path = config.disk_path / SECRET_FILE
    try:
        config.disk_path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            secret = _read(path)
            if len(secret) == SECRET_BYTES:
                return secret
            logger.warning("%s is damaged: the cache on disk begins anew; check the disk", path)
            path.unlink()
        _create(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"disk_path: cannot use {path} as the secret of block keys: {error.strerror}; give a disk_path this "
            "process can create files in"
        ) from error


def _create(path: Path) -> None:
    """Whole or not at all: a process may be killed here, and another one may do the same."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, secrets.token_bytes(SECRET_BYTES))
        os.fsync(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(file)
        draft.unlink()


def _read(path: Path) -> bytes:
    # Not waiting for somebody to write: it might be a pipe that another user has put there.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status, secret = os.fstat(file), os.read(file, SECRET_BYTES + 1)
    finally:
        os.close(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"disk_path: {path} is not a file that only this user can read, and who knows it can forge block keys; "
            "delete it, and the cache on disk begins anew"
        )
    return secret
