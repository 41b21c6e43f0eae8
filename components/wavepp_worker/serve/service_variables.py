"""Environment variables that a service's settings give its processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import COMMON, PLANES, Service
from wavepp_worker.setting_names import VARIABLES

_DYNAMOS = "DYN_"
"""What the variables of Dynamo's flags begin with."""
_ADDRESS = ("http_host", "http_port")
"""What the launcher gives a frontend as flags, whether it is configured or not."""


def check_service_variables(
    service: Service, where: str, envs: Mapping[Any, Any], flags: Mapping[str, Any]
) -> None:
    """Refuse variables that no process can have, and those that would do nothing, as a flag of the process wins.

    Args:
        where: the section that has them.
        envs: variables and their values.
        flags: what the processes get as flags, by key; null is no flag.

    Raises:
        ConfigError: names the variable, and the setting to use in its place.
    """
    given = {key for key, value in flags.items() if value is not None}
    given |= set(_ADDRESS if service.kind == "frontend" else ())
    for name, value in envs.items():
        text = str(name)
        if not text or "=" in text or "\0" in f"{text}{value}":
            raise ConfigError(
                f"{where}: {text!r} cannot be a variable with the value {str(value)!r}: a name is not empty and has "
                "no = in it, and neither of the two has a NUL"
            )
        key = text.removeprefix(_DYNAMOS).lower()
        if text.startswith(VARIABLES):
            own = text.removeprefix(VARIABLES).lower()
            raise ConfigError(f"{where}.{text}: is a setting of the service; give it as {service.name}.{own}")
        if text.startswith(_DYNAMOS) and key in given:
            setting = f"--{COMMON}.{key}" if key in PLANES else f"{service.name}.{key}"
            raise ConfigError(
                f"{where}.{text}: would do nothing, as the process gets a flag for it, which wins; give {setting}"
            )
