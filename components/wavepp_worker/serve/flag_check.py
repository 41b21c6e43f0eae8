"""Asks a service's own parser whether it would take the flags, before a process is started with them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.parsers import parser_of
from wavepp_worker.setting_names import SEE_HELP, VARIABLES

_GPUS = "CUDA_VISIBLE_DEVICES"
_NOT_TAKEN = re.compile(r"--([a-z][a-z0-9-]*): (?:unknown|is a setting of (?:workers|frontends))")
"""How a parser says that it has no such flag."""


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
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse flags that the service would refuse.

    Args:
        env: the environment that its process would have.
        others: the graph's services, of which another may have a key that this one has not.
        shape: of the model it is given, if it is given one.
        disks: what other processes take of disks; gains what this one takes.

    Raises:
        ConfigError: names the key as the configuration spells it.
    """
    parser = parser_of(service)
    if parser is None:
        return
    try:
        # What a parser warns of, the process itself says, in lines of its own.
        with _as_environment(env), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = parser.parse(argv)
            if shape is not None and hasattr(args, "check"):
                args.check(shape)
            if shape is not None and hasattr(args, "disk_use"):
                use = args.disk_use(shape, disks)
                disks += [use] if use is not None else []
    except ConfigError as error:
        message = _as_keys(service, str(error))
        if (unknown := _NOT_TAKEN.match(str(error))) is not None:
            owners = [each.name for each in others if each is not service and _takes(each, unknown[1])]
            if owners:
                key = unknown[1].replace("-", "_")
                message = f"{service.name}.{key}: unknown; {key} is a key of {' and '.join(owners)}"
        raise ConfigError(message) from error


@contextlib.contextmanager
def _as_environment(env: Mapping[str, str]) -> Iterator[None]:
    """Have ``env`` in the place of this process's environment; GPUs stay those that were counted."""
    before = dict(os.environ)
    gpus = {name: value for name, value in before.items() if name == _GPUS}
    os.environ.clear()
    os.environ.update({name: value for name, value in (env or before).items() if name != _GPUS} | gpus)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _takes(service: Service, flag: str) -> bool:
    """Whether a service's parser knows ``--flag``."""
    parser = parser_of(service)
    if parser is None:
        return False
    try:
        parser.parse([f"--{flag}=0"])
    except ConfigError as error:
        refused = _NOT_TAKEN.match(str(error))
        return refused is None or refused[1] != flag
    return True


def _as_keys(service: Service, message: str) -> str:
    """A complaint about ``--kv-tokens`` as one about ``Service.kv_tokens``, which is what the user wrote.

    Flags of other programs, such as those of a command to be run, stay as they are.
    """

    def as_key(flag: re.Match[str]) -> str:
        # What a complaint begins with is the user's, known or not.
        own = flag.start() == 0 or _takes(service, flag[1])
        return f"{service.name}.{flag[1].replace('-', '_')}" if own else flag[0]

    message = re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*)", as_key, message.removesuffix(SEE_HELP))
    if ": unknown" in message:
        message += f"; python -m {service.module} --help lists the keys, as flags"
    if message.startswith(VARIABLES):
        return message
    return message if message.startswith(f"{service.name}.") else f"{service.name}: {message}"
