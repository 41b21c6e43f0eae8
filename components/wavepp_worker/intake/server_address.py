"""How one connects to the NATS servers of a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Coroutine, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from wavepp_worker.errors import ConfigError, QueueError
from wavepp_worker.nats_variables import (
    CREDENTIALS_VARIABLE,
    DEFAULT_SERVER,
    NKEY_VARIABLE,
    PASSWORD_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    USER_VARIABLE,
)
from wavepp_worker.server_reach import split_servers, without_password

_AUTHENTICATION = {
    USER_VARIABLE: "user",
    PASSWORD_VARIABLE: "password",
    TOKEN_VARIABLE: "token",
    NKEY_VARIABLE: "nkeys_seed_str",
    CREDENTIALS_VARIABLE: "user_credentials",
}
_NEED_NKEYS = ("nkeys_seed_str", "user_credentials")

logger = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS = 0.2


def servers(given: str | None, environment: Mapping[str, str]) -> list[str]:
    """The servers' URLs.

    Args:
        given: URLs with commas between; None for those of the environment.
        environment: what there is of NATS's variables.

    Raises:
        ConfigError: there is none among them.
    """
    text = given or environment.get(SERVER_VARIABLE) or DEFAULT_SERVER
    urls = split_servers(text)
    for url in urls:
        if not re.fullmatch(r"(nats|tls|ws|wss)://.+", url) or not _is_place(url):
            raise ConfigError(
                f"nats_server: {without_password(url)!r} should be like nats://host:4222, or tls://host:4222, with a "
                "port from 1 to 65535"
            )
    return urls


def _is_place(url: str) -> bool:
    """Whether somebody could listen where a URL says."""
    try:
        place = urlsplit(url)
        return bool(place.hostname) and place.port != 0
    except ValueError:
        return False


def authentication(environment: Mapping[str, str]) -> dict[str, str]:
    """What to prove oneself with, as ``nats.connect`` takes it.

    Raises:
        ConfigError: a library is lacking for it, or a file cannot be read.
    """
    found = {
        option: environment[variable]
        for variable, option in _AUTHENTICATION.items()
        if environment.get(variable)
    }
    if any(option in found for option in _NEED_NKEYS) and find_spec("nkeys") is None:
        raise ConfigError(
            "NATS_AUTH_NKEY and NATS_AUTH_CREDENTIALS_FILE need the package nkeys: pip install nkeys"
        )
    credentials = found.get("user_credentials")
    if credentials is not None and not os.access(credentials, os.R_OK):
        raise ConfigError(
            f"NATS_AUTH_CREDENTIALS_FILE: {credentials!r} cannot be read; name a file that this user may read"
        )
    return found


async def connect(
    given: str | None, environment: Mapping[str, str], name: str, seconds: float | None, meanwhile: str = ""
) -> Any:
    """A connection that comes back by itself whenever it is lost.

    Args:
        given, environment: as of ``servers``.
        name: who connects, for the server's operator.
        seconds: until the server has to be there; None tries until it is, four times a second.
        meanwhile: what is so until then, for the log.

    Raises:
        ConfigError: no server can be there, or a library is lacking.
        QueueError: nobody answers there, or who does refuses; names what to set.
    """
    try:
        import nats
    except ImportError as error:
        raise ConfigError("jobs over NATS need the package nats-py: pip install nats-py") from error
    from wavepp_worker.intake.nats_client import NatsClient

    urls, proof = servers(given, environment), authentication(environment)
    shown = ", ".join(map(without_password, urls))
    last: list[str] = []
    connections: list[Any] = []

    async def on_error(error: Exception) -> None:
        if last and isinstance(error, ConnectionResetError):
            return  # a server that refuses may hang up before its reason is read; it gave one before
        hangs = isinstance(error, asyncio.TimeoutError)
        why = "it does not answer" if hangs else str(error) or type(error).__name__
        if not connections and not last:
            bound = "until it is" if seconds is None else f"for {seconds:.0f} s"
            logger.warning(
                "the NATS server %s is not reached yet (%s), and tried %s%s", shown, why, bound, meanwhile
            )
        last[:] = [why]

    async def on_loss() -> None:
        if connections and not connections[0].is_closed:
            why = f" ({last[0]})" if last else ""
            last.clear()
            logger.warning("the NATS server %s is not reached%s, and is tried again", shown, why)

    async def on_return() -> None:
        last.clear()
        logger.warning("the NATS server %s is reached again", shown)

    connection: Any = NatsClient()
    try:
        await _within(
            seconds,
            connection.connect(
                urls,
                name=name,
                error_cb=on_error,
                disconnected_cb=on_loss,
                reconnected_cb=on_return,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,
                connect_timeout=2,
                ping_interval=10,
                **proof,
            ),
        )
    except (OSError, ValueError, asyncio.TimeoutError, nats.errors.Error) as error:
        why = last[0] if last else str(error) or f"it does not answer within {seconds or 0.0:.0f} s"
        raise QueueError(
            f"no NATS server can be used at {shown}: {why}; start one with JetStream (nats-server -js), or name "
            f"another where this one is named, or in {SERVER_VARIABLE}"
        ) from error
    if last:
        logger.warning("the NATS server %s is reached", shown)
        last.clear()
    connections.append(connection)
    return connection


async def _within(seconds: float | None, connecting: Coroutine[Any, Any, None]) -> None:
    """As ``asyncio.wait_for``; but who connects loses some cancellations, and is cancelled until it ends.

    Before Python 3.12 one that comes in the same moment as what a wait inside is for is lost, and it goes on for ever.
    """
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_SECONDS)
    raise asyncio.TimeoutError
