"""Where the launcher asks a worker for its health, and a variable that would have the worker answer elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.errors import ConfigError

HEALTH_PATH = "/health"
HEALTH_VARIABLE = "DYN_SYSTEM_HEALTH_PATH"


def check_probed_path(environment: Mapping[str, str], key: str) -> None:
    """Refuse a worker that would answer for its health elsewhere.

    Args:
        environment: the worker's; what is empty counts as not set.
        key: what the variable is called, as the user wrote it.

    Raises:
        ConfigError: names the variable.
    """
    if (value := environment.get(HEALTH_VARIABLE) or HEALTH_PATH) != HEALTH_PATH:
        raise ConfigError(
            f"{key}: {value!r} is not where the launcher asks workers, which is {HEALTH_PATH}; leave it out"
        )
