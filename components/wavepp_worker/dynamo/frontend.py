"""Dynamo's frontend behind a gate: ``python -m wavepp_worker.dynamo.frontend``.

Takes the flags of ``python -m dynamo.frontend`` and ``--model``. The frontend itself listens on a loopback
port of its own in the same process; the public port refuses what ``gate`` finds, with status 400 and a
sentence, and passes everything else through unchanged.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.gate import GUARDED, problem
from wavepp_worker.errors import ConfigError

MOST_BODY_BYTES = 64 << 20
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
)


@dataclass(frozen=True)
class GateArgs:
    """What of the command line is ours; the rest is the frontend's."""

    host: str
    port: int
    model: Path | None
    rest: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> GateArgs:
        """Parse a command line; starts nothing.

        Raises:
            ConfigError: a bad or unknown flag; the message names it.
        """
        own = Parser(prog="python -m wavepp_worker.dynamo.frontend", add_help=False, allow_abbrev=False)
        own.add_argument("--model", type=Path)
        given, rest = own.parse_known_args(argv)
        checked = _check_frontend_flags(rest)
        return cls(checked.http_host, checked.http_port, given.model, tuple(rest))


def _check_frontend_flags(argv: Sequence[str]) -> Any:
    from dynamo.frontend.frontend_args import FrontendArgGroup, FrontendConfig

    parser = Parser(prog="python -m wavepp_worker.dynamo.frontend", allow_abbrev=False)
    parser.add_argument("--model", help="model directory, to check token ids against its vocabulary")
    FrontendArgGroup().add_arguments(parser)
    try:
        config = FrontendConfig.from_cli_args(parser.parse_args(argv))
        config.validate()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return config


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


class Gate:
    """The HTTP server in front of the frontend."""

    def __init__(self, upstream: str, vocab_size: int | None) -> None:
        """Prepare a gate.

        Args:
            upstream: base URL of the frontend.
            vocab_size: token ids are below it; None if unknown.
        """
        self._upstream = upstream
        self._vocab_size = vocab_size
        self._session: aiohttp.ClientSession | None = None
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away ends its handler and thereby the request to the frontend, which cancels it.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: the port cannot be bound.
        """
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"--http-port: cannot listen on {host}:{port} ({error.strerror}); choose a free port"
            ) from error

    async def close(self) -> None:
        """Stop listening; idempotent, also if never started."""
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "POST" and request.path in GUARDED:
            sentence = problem(request.path, _decode(body), self._vocab_size)
            if sentence is not None:
                return _refusal(400, "Bad Request", sentence)
        assert self._session is not None
        headers = [(key, value) for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP]
        try:
            async with self._session.request(
                request.method,
                self._upstream + request.raw_path,
                headers=headers,
                data=body or None,
                allow_redirects=False,
            ) as answer:
                return await _relay(request, answer)
        except aiohttp.ClientConnectorError:
            return _refusal(503, "Service Unavailable", "the frontend is not up yet; try again shortly")


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for key, value in answer.headers.items():
        if key.lower() not in _HOP_BY_HOP:
            response.headers.add(key, value)
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


def _refusal(status: int, kind: str, sentence: str) -> web.Response:
    # The shape of the frontend's own refusals.
    return web.json_response({"message": sentence, "type": kind, "code": status}, status=status)


def _decode(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        # The frontend says best what is wrong with it.
        return None


async def _serve(args: GateArgs) -> None:
    from dynamo.frontend.main import async_main

    port = _free_port()
    gate = Gate(f"http://127.0.0.1:{port}", vocabulary(args.model))
    # The last of two equal flags counts.
    sys.argv = [sys.argv[0], *args.rest, "--http-host", "127.0.0.1", "--http-port", str(port)]
    try:
        await gate.start(args.host, args.port)
        await async_main()
    finally:
        await gate.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    try:
        uvloop.run(_serve(GateArgs.parse()))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    main()
