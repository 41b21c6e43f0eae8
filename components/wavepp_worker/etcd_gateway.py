"""Single questions to etcd over the JSON gateway of its own API; each may block for some seconds, and no longer."""

from __future__ import annotations

import asyncio
import base64
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from wavepp_worker.errors import ConfigError
from wavepp_worker.etcd_variables import PASSWORD_VARIABLE, USER_VARIABLE, etcd_urls, ssl_context

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS = 4.0
"""For one server to answer all of a question, with its login."""


class Answer(msgspec.Struct, frozen=True):
    """What all answers of etcd have: its header."""

    header: dict[str, Any]


class _Token(Answer, frozen=True):
    token: str


class _Key(msgspec.Struct, frozen=True):
    key: bytes
    lease: int = 0


class _Keys(Answer, frozen=True):
    kvs: tuple[_Key, ...] = ()


class _Lease(Answer, frozen=True):
    TTL: int = 0


Kind = TypeVar("Kind", bound=Answer)
Found = TypeVar("Found")


def ask_etcd(
    environment: Mapping[str, str], path: str, body: dict[str, Any], kind: type[Kind]
) -> Kind | None:
    """What the first server that takes a question answers; None if none does, or certificates cannot be read.

    Args:
        environment: says where etcd is, and who one is there, in Dynamo's variables.
        path: of the gateway.
        body: of the question.
        kind: of the answer; what is none counts as no answer.
    """
    return asyncio.run(_asked(environment, lambda gateway: gateway.ask(path, body, kind)))


def keys_with_prefix(environment: Mapping[str, str], prefix: str) -> dict[str, float] | None:
    """The keys that begin with ``prefix``, and for how many seconds each stays if nobody renews it.

    None as for ``ask_etcd``.
    """
    return asyncio.run(_asked(environment, lambda gateway: gateway.keys(prefix.encode())))


async def _asked(
    environment: Mapping[str, str], question: Callable[[_Gateway], Awaitable[Found]]
) -> Found | None:
    # Imported late, as few processes ask.
    import aiohttp

    try:
        context = ssl_context(environment)
    except ConfigError:
        return None
    # A proxy configured for the outside is not used, as Dynamo uses none: it must not see what goes to etcd.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=True if context is None else context)
    ) as session:
        for url in etcd_urls(environment):
            try:
                return await asyncio.wait_for(_ask_one(session, url, environment, question), ANSWER_SECONDS)
            except (
                aiohttp.ClientError,
                asyncio.TimeoutError,
                msgspec.MsgspecError,
                OSError,
                RecursionError,
                ssl.SSLError,
                ValueError,
            ):
                # Another of its servers may be there.
                continue
    return None


async def _ask_one(
    session: aiohttp.ClientSession,
    url: str,
    environment: Mapping[str, str],
    question: Callable[[_Gateway], Awaitable[Found]],
) -> Found:
    gateway = _Gateway(session, url)
    await gateway.log_in(environment)
    return await question(gateway)


class _Gateway:
    """The JSON gateway of one etcd server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers: dict[str, str] = {}

    async def log_in(self, environment: Mapping[str, str]) -> None:
        """Be who the environment says, if anybody."""
        user = environment.get(USER_VARIABLE)
        if user is not None:
            who = {"name": user, "password": environment.get(PASSWORD_VARIABLE, "")}
            self._headers["Authorization"] = (await self.ask("/v3/auth/authenticate", who, _Token)).token

    async def keys(self, prefix: bytes) -> dict[str, float]:
        body = {
            "key": base64.b64encode(prefix).decode(),
            "range_end": base64.b64encode(prefix[:-1] + bytes([prefix[-1] + 1])).decode(),
            "keys_only": True,
        }
        found = (await self.ask("/v3/kv/range", body, _Keys)).kvs
        stays = {0: math.inf}
        for lease in {each.lease for each in found} - {0}:
            stays[lease] = (await self.ask("/v3/lease/timetolive", {"ID": str(lease)}, _Lease)).TTL
        return {each.key.decode(errors="replace"): stays[each.lease] for each in found}

    async def ask(self, path: str, body: dict[str, Any], kind: type[Kind]) -> Kind:
        async with self._session.post(
            self._url + path, json=body, headers=self._headers, allow_redirects=False, raise_for_status=True
        ) as answer:
            # It writes numbers of 64 bits as texts.
            return msgspec.json.decode(await answer.read(), type=kind, strict=False)
