"""Settings that count only beside a value of another, or in some roles: flags that would do nothing are refused.

Variables are not: one environment may be that of processes of several roles.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from wavepp_worker.dynamo.flags import Taken
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import Settings
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.serve.replica_values import PLACE
from wavepp_worker.setting_names import variable_of


def check_intake(config: IntakeConfig, taken: Taken) -> None:
    """Refuse what counts for a queue alone, of a worker that takes no jobs.

    Args:
        taken: what ``config`` was made of.

    Raises:
        ConfigError: names the flag.
    """
    if not config.takes_jobs:
        others = (name for name in IntakeConfig.model_fields if name != "intake")
        why = "is of workers that take jobs from a queue; set --intake to nats or nats-alone, or leave it out"
        check_without_effect(config, taken, others, why)


def check_remote_prefill(config: RemotePrefillConfig, taken: Taken) -> None:
    """Refuse what counts for a queue alone, of a worker that prefills all itself.

    Args:
        taken: what ``config`` was made of.

    Raises:
        ConfigError: names the flag.
    """
    if config.remote_prefill == "none":
        others = (name for name in RemotePrefillConfig.model_fields if name != "remote_prefill")
        why = "is of workers that send prompts to a queue; set --remote-prefill to nats, or leave it out"
        check_without_effect(config, taken, others, why)


def check_without_effect(config: Settings, taken: Taken, names: Iterable[str], why: str) -> None:
    """Refuse flags, other than of the default's value, of settings that do nothing.

    Args:
        config: made of ``taken``.
        taken: what was given, and how.
        names: of the settings.
        why: follows the flag and a colon, and says what to change.

    Raises:
        ConfigError: names the flag.
    """
    for name in names:
        default = type(config).model_fields[name].default
        if name in taken and getattr(config, name) != default and not _is_variables(name, taken):
            raise ConfigError(f"{taken.spell(name)}: {why}")


def _is_variables(name: str, taken: Taken) -> bool:
    """Whether a variable says so: itself, or by a flag that the launcher makes of it for each replica."""
    variable = os.environ.get(variable_of(name), "")
    return PLACE in variable or variable == taken[name]
