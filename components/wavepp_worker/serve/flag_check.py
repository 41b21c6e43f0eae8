"""Asks a service's own parser whether it would take the flags, before a process is started with them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.serve.graph import Service
from wavepp_worker.setting_names import SEE_HELP


def check_module(service: Service) -> None:
    """Refuse a service whose module no process would find.

    Raises:
        ConfigError: names the service and the module.
    """
    try:
        found = importlib.util.find_spec(service.module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise ConfigError(
            f"{service.name}: there is no module {service.module} that python -m could run; the graph should name one "
            "that is installed, in the working directory, or beside the graph's file"
        )


def check_flags(
    service: Service,
    argv: Sequence[str],
    shape: ModelShape | None,
    disks: list[object],
    others: Sequence[Service] = (),
) -> None:
    """Refuse flags that the service would refuse.

    Args:
        others: the graph's services, of which another may have a key that this one has not.
        shape: of the model it is given, if it is given one.
        disks: what other processes take of disks; gains what this one takes.

    Raises:
        ConfigError: names the key as the configuration spells it.
    """
    if service.arguments is None:
        return
    module, _, name = service.arguments.partition(":")
    try:
        parser = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{service.name}: {module} cannot be imported: {error}") from error
    try:
        args = parser.parse(argv)
        if shape is not None and hasattr(args, "check"):
            args.check(shape)
        if shape is not None and hasattr(args, "disk_use"):
            use = args.disk_use(shape, disks)
            disks += [use] if use is not None else []
    except ConfigError as error:
        message = _as_keys(service, str(error))
        if (unknown := re.match(r"--([a-z][a-z0-9-]*): unknown", str(error))) is not None:
            owners = [each.name for each in others if each is not service and _takes(each, unknown[1])]
            if owners:
                key = unknown[1].replace("-", "_")
                message = f"{service.name}.{key}: unknown; {key} is a key of {' and '.join(owners)}"
        raise ConfigError(message) from error


def _takes(service: Service, flag: str) -> bool:
    """Whether a service's parser knows ``--flag``."""
    if service.arguments is None:
        return False
    module, _, name = service.arguments.partition(":")
    try:
        getattr(importlib.import_module(module), name).parse([f"--{flag}=0"])
    except ImportError:
        return False
    except ConfigError as error:
        return f"--{flag}: unknown" not in str(error)
    return True


def _as_keys(service: Service, message: str) -> str:
    """A complaint about ``--kv-tokens`` as one about ``Service.kv_tokens``, which is what the user wrote."""
    message = re.sub(
        r"(?<![\w-])--([a-z][a-z0-9-]*)",
        lambda match: f"{service.name}.{match[1].replace('-', '_')}",
        message.removesuffix(SEE_HELP),
    )
    if ": unknown" in message:
        message += f"; python -m {service.module} --help lists the keys, as flags"
    return message if message.startswith(f"{service.name}.") else f"{service.name}: {message}"
