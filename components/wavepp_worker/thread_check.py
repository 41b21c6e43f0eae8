"""Whether a machine can have as many threads as it is told to."""

from __future__ import annotations

import os

from wavepp_worker.errors import ConfigError

MOST_PER_CPU = 8
"""More than are of use where several wait for each other; the system has some ten thousands for all that run on it, and
who begins more is ended, and others with it."""


def check_threads(threads: int, key: str = "threads") -> None:
    """Refuse what no machine of this size should begin.

    Args:
        threads: of one process.
        key: the setting that has them.

    Raises:
        ConfigError: names ``key``.
    """
    if threads < 1:
        raise ConfigError(f"{key}: should be at least 1, not {threads}")
    cpus = os.cpu_count() or 1
    if threads > (most := MOST_PER_CPU * cpus):
        raise ConfigError(
            f"{key}: should be at most {most}, {MOST_PER_CPU} for each of this machine's {cpus} CPUs, not {threads}"
        )
