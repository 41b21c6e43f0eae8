"""Dynamo's frontend behind a checking proxy: ``python -m wavepp_worker.dynamo.frontend``.

Takes the flags of ``python -m dynamo.frontend`` and ``--model``. The frontend itself listens on a loopback
port of its own in the same process; the public port is the proxy's.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from wavepp_worker.dynamo.chat_template import ChatTemplate
from wavepp_worker.dynamo.etcd_use import EXIT_RUNTIME_ENDED, runtime_ended_line, wait_for_etcd
from wavepp_worker.dynamo.extensions_off import extensions_are_off
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.frontend_flags import parse_frontend_flags
from wavepp_worker.dynamo.http_paths import check_frontend_paths
from wavepp_worker.dynamo.meeting_places import check_meeting_places
from wavepp_worker.dynamo.model_fetch import fetched_model
from wavepp_worker.dynamo.nats_use import Planes, hide_unused_nats
from wavepp_worker.dynamo.runtime_variables import check_runtime_variables
from wavepp_worker.errors import ConfigError, PlaneUnreached
from wavepp_worker.liveness.stop_times import answer_seconds
from wavepp_worker.model.model_shape import has_chat_template
from wavepp_worker.serve.listen_addresses import check_listen_addresses

if TYPE_CHECKING:
    from wavepp_worker.model.grammar.judge import GrammarJudge


_TLS = {"--tls-cert-path": "DYN_TLS_CERT_PATH", "--tls-key-path": "DYN_TLS_KEY_PATH"}
"""Flags of the frontend that are the public port's, with their variables."""


@dataclass(frozen=True)
class FrontendArgs:
    """What of the command line is ours; the rest is the frontend's.

    Attributes:
        planes: how it finds and hears workers, among all that the frontend makes of the rest.
        migrations: ``--migration-limit``, which is the frontend's too.
        served: names of the models that ``model`` is the directory of, adapters' as well; none: of all. Requests for
            others pass unchecked.
        certificate: of the public port, with its key; None for plain HTTP. Between the proxy and the frontend there is
            no TLS: both are in this process.
    """

    host: str
    port: int
    model: Path | None
    rest: tuple[str, ...]
    planes: Planes
    migrations: int = 0
    served: frozenset[str] = frozenset()
    certificate: tuple[Path, Path] | None = None

    @staticmethod
    def fetch(model: Path) -> Path:
        """As of a worker, whose model it is."""
        return fetched_model(model)

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> FrontendArgs:
        """Parse a command line; starts nothing.

        Raises:
            ConfigError: a bad or unknown flag; the message names it.
        """
        own = Parser(prog="python -m wavepp_worker.dynamo.frontend", add_help=False, allow_abbrev=False)
        own.add_argument("--model", type=Path)
        own.add_argument("--served-model-name", action="append", default=[])
        for flag in _TLS:
            own.add_argument(flag)
        given, rest = own.parse_known_args(argv)
        checked = parse_frontend_flags(argv)
        check_runtime_variables(os.environ)
        check_frontend_paths(os.environ)
        check_meeting_places(os.environ, checked.discovery_backend, checked.event_plane)
        certificate = None
        if checked.tls_cert_path and checked.tls_key_path:
            certificate = checked.tls_cert_path, checked.tls_key_path
            tls_context(certificate)
        return cls(
            checked.http_host,
            checked.http_port,
            given.model,
            tuple(rest),
            checked,
            checked.migration_limit,
            frozenset(name.strip() for each in given.served_model_name for name in each.split(",")),
            certificate,
        )


def tls_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """Of a server with this certificate and key, PEM.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*certificate)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert-path, --tls-key-path: {certificate[0]} and {certificate[1]} are no certificate with its key "
            f"({error}); give PEM files that belong together, the key without a passphrase"
        ) from error
    return context


def vocabulary(model: Path | None) -> int | None:
    """Size of a model directory's vocabulary; None without a directory.

    Raises:
        ConfigError: the directory has no readable ``config.json``.
    """
    if model is None:
        return None
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model: cannot read {model / 'config.json'}: {error}") from error
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return int(size) if size is not None else None


def _judge(model: Path | None) -> GrammarJudge | None:
    from wavepp_worker.model.grammar.judge import GrammarJudge

    size = vocabulary(model)
    return None if model is None or size is None else GrammarJudge(model, size)


async def _serve(args: FrontendArgs) -> None:
    from dynamo.frontend.main import async_main

    # Imported late, as the launcher checks flags here, and loads no tensor library for that.
    from wavepp_worker.dynamo.frontend_proxy import FrontendProxy
    from wavepp_worker.dynamo.frontend_stop import FrontendLoop, FrontendStop

    inner = _held_port()
    port = inner.getsockname()[1]
    template = ChatTemplate.read(args.model) if args.model is not None else None
    proxy = FrontendProxy(
        f"http://127.0.0.1:{port}",
        vocabulary(args.model),
        template,
        chats=args.model is None or has_chat_template(args.model),
        judge=_judge(args.model),
        migrations=args.migrations,
        extensions=not extensions_are_off(os.environ),
        served=args.served,
        tls=tls_context(args.certificate) if args.certificate is not None else None,
    )
    for variable in _TLS.values():
        os.environ.pop(variable, None)
    # The last of two equal flags counts.
    sys.argv = [sys.argv[0], *args.rest, "--http-host", "127.0.0.1", "--http-port", str(port)]
    hide_unused_nats(args.planes)
    try:
        await proxy.start(args.host, args.port)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FrontendLoop)
        loop.order = FrontendStop(proxy, answer_seconds(os.environ))
        await wait_for_etcd(args.planes)
        await async_main()
        if not loop.order.given:
            sys.stderr.write(runtime_ended_line(args.planes))
            raise SystemExit(EXIT_RUNTIME_ENDED)
    finally:
        await proxy.close()
        inner.close()


def _held_port() -> socket.socket:
    """A loopback port that nobody else is given while this is open, and on which Dynamo's frontend can listen.

    Two sockets can have one address if both say so and neither listens yet. Dynamo's says so, and ours once it has the
    address for itself.
    """
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def main() -> None:
    # Imported late, as the launcher checks flags here.
    from wavepp_worker.dynamo.frontend_stop import FrontendLoop

    try:
        args = FrontendArgs.parse()
        check_listen_addresses(os.environ)
        uvloop.run(_serve(args), loop_factory=FrontendLoop)
    except (ConfigError, PlaneUnreached) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from error
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    main()
