"""The flags of Dynamo's frontend, as ours takes them: behind a proxy of its own, so that some would do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import yaml

from wavepp_worker.dynamo.dump_path import check_dump_path
from wavepp_worker.dynamo.dynamos_flags import add_dynamos_flags
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.foreign_flags import Foreign, check_options
from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_names import keys_as_flags
from wavepp_worker.thread_check import check_threads

_PROGRAM = "python -m wavepp_worker.dynamo.frontend"
_HTTP = "requests are taken over HTTP, where they are checked before workers get them; leave it out"
_GRPC_PORT = "8788"
"""Dynamo's default."""

REFUSED: Mapping[str, Foreign] = MappingProxyType(
    {
        "kserve_grpc_server": Foreign(_HTTP, ("false",)),
        "grpc_metrics_port": Foreign(_HTTP, (_GRPC_PORT,)),
        "interactive": Foreign(_HTTP, ("false",)),
        "migration_max_seq_len": Foreign(
            "a request that has got nothing of its answer is asked again however long it is; leave it out, and set "
            "--migration-limit to how often"
        ),
        "tls_client_ca_cert_path": Foreign(
            "certificates of clients are not asked for at this port; leave it out, and have a proxy before it do that"
        ),
    }
)
"""Flags that Dynamo's frontend would obey and the proxy before it would not, by the names of their values."""


def frontend_flags() -> tuple[str, ...]:
    """All flags of Dynamo's frontend, as they are written."""
    from dynamo.frontend.frontend_args import FrontendArgGroup

    parser = Parser(add_help=False)
    # It reads numbers from the frontend's variables, and a bad one there is none of a worker's.
    with contextlib.suppress(ConfigError):
        add_dynamos_flags(parser, FrontendArgGroup())
    return tuple(parser.flags())


def parse_frontend_flags(argv: Sequence[str] | None) -> Any:
    """What a command line says to Dynamo's frontend, as a configuration of it.

    Raises:
        ConfigError: a flag is unknown or wrong, or would do nothing; the message names it.
    """
    from dynamo.frontend.frontend_args import FrontendArgGroup, FrontendConfig

    parser = Parser(prog=_PROGRAM, allow_abbrev=False, usage=f"{_PROGRAM} [--model DIR] [FLAG ...]")
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="model directory, to check token ids against its vocabulary (default: none)",
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME,...",
        help="names under which workers serve that model and its adapters, where the frontend has other models, too, "
        "whose requests pass unchecked (default: all are checked)",
    )
    add_dynamos_flags(parser, FrontendArgGroup())
    try:
        config = FrontendConfig.from_cli_args(parser.parse_args(argv))
        check_options(config, REFUSED)
        config.validate()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        # The one file that a configuration of Dynamo 1.6 reads by itself.
        raise ConfigError(
            f"--router-policy-config: failed to read {error.filename}: {error.strerror}; name a file in YAML"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--router-policy-config: is not YAML: {' '.join(str(error).split())}") from error
    # The frontend itself would find out only while it starts, once for every restart.
    if config.router_predicted_ttl_secs is not None and not (config.use_kv_events or config.load_aware):
        raise ConfigError(
            f"--router-predicted-ttl-secs: {config.router_predicted_ttl_secs:g} needs KV events, which "
            "--no-router-kv-events switches off: leave one of the two out (for a graph, "
            "--Frontend.router_predicted_ttl_secs=null)"
        )
    if config.kv_cache_block_size is not None and config.kv_cache_block_size < 1:
        raise ConfigError(
            f"--kv-cache-block-size: should be at least 1, not {config.kv_cache_block_size}; leave it out, and the "
            "workers' counts"
        )
    check_dump_path(config.dump_config_to)
    if config.router_mode == "kv":
        check_threads(config.router_event_threads, "--router-event-threads")
        _check_router(config, parser)
    return config


def _check_router(config: Any, parser: Parser) -> None:
    """Make Dynamo's router's own configuration, which refuses numbers out of bounds, and files it cannot read."""
    from dynamo.llm import KvRouterConfig

    settings = config.kv_router_kwargs()
    try:
        KvRouterConfig(**settings)
    except ValueError as error:
        raise ConfigError(keys_as_flags(str(error), settings, parser.flag_for)) from error
