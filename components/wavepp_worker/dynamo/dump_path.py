"""Where Dynamo writes a process's configuration to, ``--dump-config-to``: whether it could."""

from __future__ import annotations

from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.writable import check_writable


def check_dump_path(name: str | None) -> None:
    """Refuse a file that cannot be written, after which Dynamo goes on with a stack trace; makes nothing that stays.

    Args:
        name: of the file, which is made with all directories that lead to it.

    Raises:
        ConfigError: names the setting.
    """
    if not name:
        return
    path, setting = Path(name).absolute(), "--dump-config-to (or DYN_DUMP_CONFIG_TO)"
    if path.is_dir():
        raise ConfigError(f"{setting}: {name} is a directory; name a file in it")
    try:
        if path.exists():
            path.open("a").close()
        else:
            check_writable(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{setting}: {name} cannot be written ({error.strerror}); name a file elsewhere"
        ) from error
