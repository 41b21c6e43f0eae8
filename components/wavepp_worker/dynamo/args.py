"""Command lines of the Dynamo workers: flags in, validated configurations out. Starts nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.longest_request import longest_request
from wavepp_worker.dynamo.flags import Parser, add_fields, build, take
from wavepp_worker.dynamo.runtime_args import RuntimeArgs, add_runtime, take_runtime
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import overlay, present_name
from wavepp_worker.handoff.host_check import check_host
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.server_address import servers
from wavepp_worker.model.chat_template import message_writer
from wavepp_worker.model.device import check_device
from wavepp_worker.model.model_shape import ModelShape, check_served_model
from wavepp_worker.runtime.client.disk_room import DiskUse, check_room, disk_use
from wavepp_worker.runtime.client.start_checks import check_start
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.setting_names import flag_of, keys_as_flags
from wavepp_worker.versions import versions

_WORKERS_OWN = {"handoff": "auto"}
"""Defaults that a worker has and an engine has not."""


_TEMPLATE = "custom_jinja_template"


class _Args:
    """What the three kinds of worker share in parsing."""

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse a command line; touches neither the model nor the network.

        Args:
            argv: flags, by default those of this process.

        Raises:
            ConfigError: an unknown flag or a bad value; the message names it.
        """
        raise NotImplementedError

    @property
    def model(self) -> Path:
        """The model directory."""
        raise NotImplementedError

    def check(self, shape: ModelShape) -> None:
        """Refuse what the worker would refuse while it starts; reads no weights, and takes milliseconds.

        Args:
            shape: of the model.

        Raises:
            ConfigError: it cannot work; the message names the flag.
        """
        raise NotImplementedError

    def disk_use(self, shape: ModelShape, others: Sequence[DiskUse]) -> DiskUse | None:
        """What the worker's disk tier takes, if it has one.

        Args:
            shape: of the model.
            others: what other workers on this machine will take.

        Raises:
            ConfigError: there is no room for it beside the others; the message names the flag.
        """
        del shape, others
        return None

    @classmethod
    def parse_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """As ``parse`` and ``check``, but print the complaint and leave with code 2."""
        try:
            args = cls.parse(argv)
            with _as_flags():
                shape = check_served_model(args.model)
            args.check(shape)
            return args
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from error


@dataclass(frozen=True)
class _EngineArgs(_Args):
    """What workers with an engine of ranks share."""

    engine: EngineConfig
    runtime: RuntimeArgs

    @property
    def model(self) -> Path:
        return self.engine.model

    def check(self, shape: ModelShape) -> None:
        with _as_flags():
            check_start(self.engine, shape)
            _check_template(self.model, self.runtime)

    def disk_use(self, shape: ModelShape, others: Sequence[DiskUse]) -> DiskUse | None:
        with _as_flags():
            use = disk_use(self.engine, shape)
            if use is not None:
                check_room([*others, use])
            return use


@dataclass(frozen=True)
class PrefillArgs(_EngineArgs):
    """A prefill worker's command line."""

    intake: IntakeConfig

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        parser = _parser("python -m wavepp_worker.dynamo.prefill", "A WavePP prefill worker.")
        add_fields(parser, EngineConfig, "Prefill", defaults=_WORKERS_OWN)
        add_fields(parser, IntakeConfig, "Jobs from a queue")
        add_runtime(parser)
        given = vars(parser.parse_args(argv))
        engine = build(EngineConfig, _with_handoff(take(given, EngineConfig)))
        intake = build(IntakeConfig, take(given, IntakeConfig))
        return cls(engine, take_runtime(given, "prefill", engine.model.name), intake)

    def check(self, shape: ModelShape) -> None:
        super().check(shape)
        if self.intake.takes_jobs:
            with _as_flags():
                servers(self.intake.nats_server)


@dataclass(frozen=True)
class DecodeArgs(_Args):
    """A decode worker's command line."""

    decode: DecodeConfig
    runtime: RuntimeArgs

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        parser = _parser("python -m wavepp_worker.dynamo.decode", "A WavePP decode worker.")
        add_fields(parser, DecodeConfig, "Decode")
        add_runtime(parser)
        given = vars(parser.parse_args(argv))
        decode = build(DecodeConfig, take(given, DecodeConfig))
        return cls(decode, take_runtime(given, "backend", decode.model.name))

    @property
    def model(self) -> Path:
        return self.decode.model

    def check(self, shape: ModelShape) -> None:
        with _as_flags():
            _check_decode(self.decode, shape)
            _check_template(self.model, self.runtime)


@dataclass(frozen=True)
class AggArgs(_EngineArgs):
    """The command line of a worker that does both."""

    decode: DecodeConfig
    decodes_own: frozenset[str]
    """Settings of decode that were given as ``--decode-x``."""
    remote: RemotePrefillConfig

    def check(self, shape: ModelShape) -> None:
        super().check(shape)
        if self.remote.remote_prefill == "nats":
            with _as_flags():
                servers(self.remote.nats_server)
        with _as_flags(lambda key: flag_of(f"decode_{key}" if key in self.decodes_own else key)):
            _check_decode(self.decode, shape)

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse a command line; a flag both halves know sets both, ``--decode-x`` sets decode's alone.

        Raises:
            ConfigError: an unknown flag or a bad value; the message names it.
        """
        parser = _parser("python -m wavepp_worker.dynamo.agg", "A worker that prefills and decodes.")
        add_fields(
            parser, EngineConfig, "Prefill, and decode where it has the same flag", defaults=_WORKERS_OWN
        )
        shared = {name: f"as {flag_of(name)}" for name in DecodeConfig.model_fields}
        add_fields(parser, DecodeConfig, "Decode alone", prefix="decode_", defaults=shared)
        add_fields(parser, RemotePrefillConfig, "Prefill through a queue")
        add_runtime(parser)
        given = vars(parser.parse_args(argv))
        own = take(given, DecodeConfig, prefix="decode_")
        remote = build(RemotePrefillConfig, take(given, RemotePrefillConfig))
        both = take(given, EngineConfig)
        engine = build(EngineConfig, _with_handoff(both))
        common = {key: value for key, value in both.items() if present_name(key) in DecodeConfig.model_fields}
        # Each rank's pool is its own; a list of pools means nothing to the one decode pool.
        if "," in str(common.get("kv_tokens", "")):
            del common["kv_tokens"]
        decode = build(
            DecodeConfig,
            overlay(common, own),
            lambda key: flag_of(f"decode_{key}" if key in own else key),
        )
        runtime = take_runtime(given, "backend", engine.model.name)
        return cls(engine, runtime, decode, frozenset(map(present_name, own)), remote)


@contextlib.contextmanager
def _as_flags(spell: Callable[[str], str] = flag_of) -> Iterator[None]:
    """Complaints about keys become complaints about flags."""
    try:
        yield
    except ConfigError as error:
        models = (EngineConfig, DecodeConfig, IntakeConfig, RemotePrefillConfig)
        keys = {_TEMPLATE, *(key for each in models for key in each.model_fields)}
        raise ConfigError(keys_as_flags(str(error), keys, spell)) from error


def _check_decode(config: DecodeConfig, shape: ModelShape) -> None:
    if shape.context_length is not None:
        longest_request(config, shape.context_length)
    check_device(config.device)
    check_host(config.host)


def _check_template(model: Path, runtime: RuntimeArgs) -> None:
    custom = getattr(runtime.options, _TEMPLATE)
    if custom is not None:
        message_writer(model, Path(custom))


def _parser(program: str, description: str) -> Parser:
    parser = Parser(
        prog=program, description=description, allow_abbrev=False, usage=f"{program} --model DIR [FLAG ...]"
    )
    parser.add_argument("--version", action="version", version=versions(), help="print versions and leave")
    return parser


def _with_handoff(engine: dict[str, Any]) -> dict[str, Any]:
    if {**_WORKERS_OWN, **engine}["handoff"] == "none":
        raise ConfigError(
            f"{flag_of('handoff')}: a worker behind Dynamo has to hand its KV to decode; "
            "choose auto, socket or nixl"
        )
    return {**_WORKERS_OWN, **engine}
