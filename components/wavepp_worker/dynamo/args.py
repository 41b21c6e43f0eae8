"""Command lines of the Dynamo workers: flags in, validated configurations out. Starts nothing."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import Self

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.kv_budget import decode_share, with_pool
from wavepp_worker.decode.longest_request import longest_request
from wavepp_worker.dynamo.adapter_names import check_adapter_names
from wavepp_worker.dynamo.flags import Parser, Taken, add_fields, all_names, build, check_variables, take
from wavepp_worker.dynamo.foreign_flags import FOREIGN
from wavepp_worker.dynamo.frontend_flags import frontend_flags
from wavepp_worker.dynamo.handoff_host import REQUESTS_VARIABLE, HandoffHost, handoff_host, routable_address
from wavepp_worker.dynamo.model_fetch import model_name
from wavepp_worker.dynamo.runtime_args import RuntimeArgs, add_runtime, take_runtime
from wavepp_worker.dynamo.unused_settings import check_intake, check_remote_prefill
from wavepp_worker.dynamo.worker_args import WorkerArgs, as_flags
from wavepp_worker.dynamo.worker_settings import WorkerSettings
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import Settings, overlay, present_name
from wavepp_worker.host_check import check_host
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.server_address import servers
from wavepp_worker.model.device.free_memory import free_memory
from wavepp_worker.model.device.placement import check_device
from wavepp_worker.model.files.chat_template import message_writer
from wavepp_worker.model.files.generation_config import read_generation_config
from wavepp_worker.model.kv.kv_share import DEFAULT_FRACTIONS
from wavepp_worker.model.lora import adapter_paths, read_adapters
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.model.timed.timed_model import is_timed
from wavepp_worker.runtime.client.disk_room import DiskUse, check_room, disk_use
from wavepp_worker.runtime.client.kv_budget import engine_shares, with_pools
from wavepp_worker.runtime.client.start_checks import check_start
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.setting_names import flag_of
from wavepp_worker.thread_check import check_threads
from wavepp_worker.versions import versions

_POOLS = ("kv_tokens", "kv_memory_fraction")
"""Two ways to say how large a KV pool is."""
_WORKERS_OWN = {"handoff": "auto"}
"""Defaults that a worker has and an engine has not."""
_HOST = {"host": "127.0.0.1 with discovery by files, else where requests are taken"}
"""What ``WorkerArgs.host`` makes of the default, in words."""


_OF_PREFILL = "is a setting of workers that prefill; a decode worker runs the whole model on one device"
_OF_AGG = (
    "is a setting of workers that both prefill and decode, such as the decode workers of dynamo serve "
    "graphs:disagg_wavepp_queue, which send long prompts to a queue (docs/queue.md)"
)
_OF_FRONTENDS = "is a setting of frontends; give it to python -m wavepp_worker.dynamo.frontend"
_ANY_ROLE = ("wavepp_worker", "__main__.py")
"""Where a command line's program is if it is ``python -m wavepp_worker``, which runs the module of a role."""
_TEMPLATE = "custom_jinja_template"


@dataclass(frozen=True, kw_only=True)
class _EngineArgs(WorkerArgs):
    """What workers with an engine of ranks share."""

    engine: EngineConfig

    @property
    def model(self) -> Path:
        return self.engine.model

    def changed(self, **settings: Any) -> Self:
        return dataclasses.replace(self, engine=self.engine.model_copy(update=settings))

    def host(self) -> HandoffHost:
        return _host(self, self.engine.host)

    def check(self, shape: ModelShape) -> None:
        with as_flags(self.spell):
            check_start(self.settled(shape).engine, shape)
            check_adapter_names(adapter_paths(self.engine.lora_modules), self.runtime.served_model_name)
            _check_template(self.model, self.runtime)
            read_generation_config(self.model)
        self.host()

    def settled(self, shape: ModelShape) -> Self:
        with as_flags(self.spell):
            _check_engines_device(self.engine)
            engine = self.engine.model_copy(update=_default_pool(self.engine))
            return dataclasses.replace(self, engine=with_pools(engine, shape, free=free_memory))

    def disk_use(self, shape: ModelShape, others: Sequence[DiskUse]) -> DiskUse | None:
        with as_flags(self.spell):
            use = disk_use(self.engine, shape)
            if use is not None:
                check_room([*others, use])
            return use


@dataclass(frozen=True, kw_only=True)
class PrefillArgs(_EngineArgs):
    """A prefill worker's command line."""

    intake: IntakeConfig

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        return _names(EngineConfig, IntakeConfig, WorkerSettings)

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        parser = _parser("python -m wavepp_worker.dynamo.prefill", "A WavePP prefill worker.")
        add_fields(parser, EngineConfig, "Prefill", defaults={**_WORKERS_OWN, **_HOST})
        add_fields(parser, IntakeConfig, "Jobs from a queue")
        add_runtime(parser)
        given = _given(parser, argv, cls)
        own, queue = take(given, EngineConfig), take(given, IntakeConfig)
        engine = build(EngineConfig, _with_handoff(own), own.spell)
        intake = build(IntakeConfig, queue, queue.spell)
        check_intake(intake, queue)
        runtime = take_runtime(given, "prefill", model_name(engine.model), own)
        return cls(runtime=runtime, engine=engine, intake=intake, written=_written(own, queue))

    def check(self, shape: ModelShape) -> None:
        super().check(shape)
        if self.intake.takes_jobs:
            with as_flags(self.spell):
                servers(self.intake.nats_server, os.environ)


@dataclass(frozen=True, kw_only=True)
class DecodeArgs(WorkerArgs):
    """A decode worker's command line."""

    decode: DecodeConfig

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        return _names(DecodeConfig, WorkerSettings)

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        parser = _parser("python -m wavepp_worker.dynamo.decode", "A WavePP decode worker.")
        add_fields(parser, DecodeConfig, "Decode", defaults=_HOST)
        add_runtime(parser)
        given = _given(parser, argv, cls)
        own = take(given, DecodeConfig)
        decode = build(DecodeConfig, own, own.spell)
        runtime = take_runtime(given, "decode", model_name(decode.model), own)
        return cls(runtime=runtime, decode=decode, written=_written(own))

    @property
    def model(self) -> Path:
        return self.decode.model

    def changed(self, **settings: Any) -> Self:
        return dataclasses.replace(self, decode=self.decode.model_copy(update=settings))

    def host(self) -> HandoffHost:
        return _host(self, self.decode.host)

    def settled(self, shape: ModelShape) -> Self:
        with as_flags(self.spell):
            check_device(self.decode.device)
            decode = self.decode.model_copy(update=_default_pool(self.decode))
            return dataclasses.replace(self, decode=with_pool(decode, shape, free=free_memory))

    def check(self, shape: ModelShape) -> None:
        self.host()
        with as_flags(self.spell):
            _check_decode(self.settled(shape).decode, shape)
            check_adapter_names(adapter_paths(self.decode.lora_modules), self.runtime.served_model_name)
            _check_template(self.model, self.runtime)
            read_generation_config(self.model)


@dataclass(frozen=True, kw_only=True)
class AggArgs(_EngineArgs):
    """The command line of a worker that does both."""

    decode: DecodeConfig
    decodes_own: Mapping[str, str]
    """Settings of decode that were given as ``--decode-x``, and how they were written."""
    remote: RemotePrefillConfig

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        decodes = (f"decode_{name}" for name in all_names(DecodeConfig))
        return (*_names(EngineConfig, RemotePrefillConfig, WorkerSettings), *decodes)

    def changed(self, **settings: Any) -> Self:
        own = super().changed(**settings)
        return dataclasses.replace(own, decode=self.decode.model_copy(update=settings))

    def host(self) -> HandoffHost:
        # What it prefills itself never leaves this machine.
        if self.remote.remote_prefill == "none":
            return HandoffHost(self.engine.host)
        return super().host()

    def check(self, shape: ModelShape) -> None:
        super().check(shape)
        if self.remote.remote_prefill == "nats":
            with as_flags(self.spell):
                servers(self.remote.nats_server, os.environ)
        with as_flags(self._decodes):
            _check_decode(self.settled(shape).decode, shape)

    def settled(self, shape: ModelShape) -> Self:
        """As of every worker; both halves share what their devices have left."""
        free = cache(free_memory)
        engine = self.engine.model_copy(update=_default_pool(self.engine))
        decode = self.decode.model_copy(update=_default_pool(self.decode))
        with as_flags(self.spell):
            _check_engines_device(engine)
            settled = with_pools(engine, shape, decode_share(decode, shape), free)
        with as_flags(self._decodes):
            check_device(decode.device)
            own = with_pool(decode, shape, engine_shares(engine, shape), free)
        return dataclasses.replace(self, engine=settled, decode=own)

    def _decodes(self, key: str) -> str:
        return self.decodes_own.get(key, self.spell(key))

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
        given = _given(parser, argv, cls)
        own = take(given, DecodeConfig, prefix="decode_")
        queue = take(given, RemotePrefillConfig)
        remote = build(RemotePrefillConfig, queue, queue.spell)
        check_remote_prefill(remote, queue)
        both = take(given, EngineConfig)
        engine = build(EngineConfig, _with_handoff(both), both.spell)
        common = {key: value for key, value in both.items() if present_name(key) in DecodeConfig.model_fields}
        # Each rank's pool is its own; a list of pools means nothing to the one decode pool.
        if "," in str(common.get("kv_tokens", "")):
            del common["kv_tokens"]
        if any(present_name(name) in _POOLS for name in own):
            common = {key: value for key, value in common.items() if present_name(key) not in _POOLS}
        spell = Taken({}, {**both.written, **own.written}).spell
        decode = build(DecodeConfig, overlay(common, own), spell)
        return cls(
            runtime=take_runtime(given, "agg", model_name(engine.model), both),
            engine=engine,
            decode=decode,
            decodes_own=_written(own),
            remote=remote,
            written=_written(both, queue),
        )


def _default_pool(config: EngineConfig | DecodeConfig) -> dict[str, float]:
    """The fraction of a worker's memory for KV, where nobody says how much."""
    if config.kv_tokens is not None or config.kv_memory_fraction is not None:
        return {}
    return {"kv_memory_fraction": DEFAULT_FRACTIONS["cpu" if config.device == "cpu" else "cuda"]}


def _check_engines_device(engine: EngineConfig) -> None:
    if not is_timed(engine.model):
        check_device(engine.device)


def _host(args: WorkerArgs, host: str) -> HandoffHost:
    with as_flags(args.spell):
        return handoff_host(
            host,
            given="host" in args.written,
            discovery=str(args.runtime.options.discovery_backend),
            requests_at=os.environ.get(REQUESTS_VARIABLE),
            routable=routable_address,
        )


def _names(*models: type[Settings]) -> tuple[str, ...]:
    return tuple(name for model in models for name in all_names(model))


def _given(parser: Parser, argv: Sequence[str] | None, kind: type[WorkerArgs]) -> dict[str, Any]:
    """What a command line says, by name; variables that no worker knows are refused."""
    known = {name for each in (PrefillArgs, DecodeArgs, AggArgs) for name in each.settings()}
    prefills = set(PrefillArgs.settings())
    parser.others = dict.fromkeys(frontend_flags(), _OF_FRONTENDS) | {
        flag_of(name): _OF_PREFILL if name in prefills else _OF_AGG for name in known - set(kind.settings())
    }
    given = vars(parser.parse_args(argv))
    check_variables(known | FOREIGN.keys())
    return given


def _written(*taken: Taken) -> dict[str, str]:
    return {present_name(name): how for each in taken for name, how in each.written.items()}


def _check_decode(config: DecodeConfig, shape: ModelShape) -> None:
    if shape.context_length is not None:
        longest_request(config, shape.context_length)
    read_adapters(config.lora_modules)
    check_device(config.device)
    check_threads(config.threads)
    check_host(config.host)


def _check_template(model: Path, runtime: RuntimeArgs) -> None:
    custom = getattr(runtime.options, _TEMPLATE)
    if custom is not None:
        message_writer(model, Path(custom))


def _parser(program: str, description: str) -> Parser:
    if Path(sys.argv[0]).parts[-2:] == _ANY_ROLE:
        program = "python -m wavepp_worker"
    parser = Parser(
        prog=program,
        description=f"{description} A flag may be given as a variable instead, --kv-tokens as DYN_WAVEPP_KV_TOKENS; "
        "the flag wins. Most flags of Dynamo's workers for TensorRT-LLM and vLLM are taken as well.",
        allow_abbrev=False,
        usage=f"{program} --model DIR [FLAG ...]",
    )
    parser.add_argument("--version", action="version", version=versions(), help="print versions and leave")
    return parser


def _with_handoff(engine: Taken) -> dict[str, Any]:
    if {**_WORKERS_OWN, **engine}["handoff"] == "none":
        raise ConfigError(
            f"{engine.spell('handoff')}: a worker behind Dynamo has to hand its KV to decode; "
            "choose auto, socket or nixl"
        )
    return {**_WORKERS_OWN, **engine}
