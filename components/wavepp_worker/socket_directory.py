"""Private directories for the sockets between the processes of one machine, where paths may not be long."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from wavepp_worker.errors import ConfigError

LONGEST_PATH = 107
"""Bytes of a socket's path that the kernel takes."""
LONGEST_NAME = 10
"""Bytes of the name that a socket has in its directory."""
_PREFIX = "wavepp-"
_DRAWN = 8
# The separators before the directory and before the socket.
_LONGEST_BASE = LONGEST_PATH - LONGEST_NAME - len(_PREFIX) - _DRAWN - 2


def make_socket_directory() -> Path:
    """A new directory in the temporary one, for this user alone, in which sockets with short names can be.

    Raises:
        ConfigError: the temporary directory's path is too long for that.
        OSError: it cannot be made.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_BASE:
        raise ConfigError(
            f"TMPDIR: {base} is {len(os.fsencode(base))} bytes long, and a socket's path has at most {LONGEST_PATH}; "
            f"set TMPDIR to a directory of at most {_LONGEST_BASE} bytes, such as /tmp"
        )
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
