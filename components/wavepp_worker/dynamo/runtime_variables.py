"""Variables that Dynamo's runtime reads as it begins, and ends at with a stack trace if it cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wavepp_worker.errors import ConfigError

_SECONDS = ("DYN_CANARY_WAIT_TIME", "DYN_HEALTH_CHECK_REQUEST_TIMEOUT")
_THREADS = ("DYN_RUNTIME_NUM_WORKER_THREADS", "DYN_RUNTIME_MAX_BLOCKING_THREADS", "DYN_COMPUTE_THREADS")
_AT_LEAST_ONE = _THREADS[:2]
_SWITCHES = ("DYN_HEALTH_CHECK_ENABLED", "DYN_SYSTEM_ENABLED")
_FIRST_HEALTH = "DYN_SYSTEM_STARTING_HEALTH_STATUS"
_WHOLE = re.compile(r"\+?0*[0-9]{1,20}")
_ABOVE_ALL = 2**64


def check_runtime_variables(environment: Mapping[str, str]) -> None:
    """Refuse values that no process with this environment could start with; empty ones count as not set.

    Raises:
        ConfigError: names the variable, and what it takes.
    """
    for name in (*_SECONDS, *_THREADS):
        value = environment.get(name, "").strip()
        if value and not (_WHOLE.fullmatch(value) and int(value) < _ABOVE_ALL):
            kind = "a whole number of seconds" if name in _SECONDS else "a number of threads"
            raise ConfigError(f"{name}: should be {kind}, not {value!r}")
        if name in _AT_LEAST_ONE and value and not int(value):
            raise ConfigError(f"{name}: should be at least 1, not {value!r}")
    for name in _SWITCHES:
        value = environment.get(name, "").strip()
        if value not in ("", "true", "false"):
            raise ConfigError(f"{name}: should be true or false, not {value!r}")
    health = environment.get(_FIRST_HEALTH, "").strip()
    if health not in ("", "ready", "notready"):
        raise ConfigError(f"{_FIRST_HEALTH}: should be ready or notready, not {health!r}")
