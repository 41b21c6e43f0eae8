"""One key of etcd, followed over the JSON gateway of its own API.

Where it is, and who one is, says Dynamo's environment. That may be with certificates, or a name and a password, and no
Python client that is kept up has all that: aetcd 1.0 and etcd-client-py 0.5 have no TLS; etcd3gw 2.7 has no names and
passwords, and follows a key in a thread that ends without a word.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from wavepp_worker.etcd_variables import PASSWORD_VARIABLE, USER_VARIABLE, etcd_urls, ssl_context

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""That a server may take to answer a question."""
SILENCE_SECONDS = 60.0
"""After so long without a word of a change the key is read again: the connection may be gone and nobody said so."""
AGAIN_SECONDS = 1.0
"""Until the next server is tried."""


class _Silent(Exception):
    """Nothing was heard for so long that the key is to be read again."""


class EtcdKey:
    """Follows one key. For one event loop."""

    def __init__(self, key: str, environment: Mapping[str, str] = os.environ) -> None:
        """Nothing is connected yet.

        Raises:
            ConfigError: a certificate cannot be read; names the variable.
        """
        self.key = key
        self._urls = etcd_urls(environment)
        self._user = environment.get(USER_VARIABLE)
        self._password = environment.get(PASSWORD_VARIABLE, "")
        self._ssl = ssl_context(environment)
        self._told: tuple[int, bytes | None] | None = None
        self._failing = False

    async def follow(self, tell: Callable[[bytes | None], None]) -> None:
        """Call ``tell`` with the key's value, None if it is not there, now and at each change; run until cancelled.

        While no server is reached it is tried again and again, and said once.
        """
        for url in itertools.cycle(self._urls):
            try:
                async with self._session(url) as session:
                    await self._follow(session, tell)
            except _Silent:
                continue
            except Exception as error:  # whatever a server says, and however much: it is asked again
                if not self._failing:
                    why = " ".join(str(error).split())[:200] or type(error).__name__
                    logger.warning(
                        "etcd cannot be asked for %s at %s, and is tried again: %s", self.key, url, why
                    )
                self._failing = True
            await asyncio.sleep(AGAIN_SECONDS)

    @asynccontextmanager
    async def _session(self, url: str) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self._ssl if self._ssl is not None else True)
        async with aiohttp.ClientSession(url, connector=connector) as session:
            if self._user is not None:
                who = {"name": self._user, "password": self._password}
                session.headers["Authorization"] = (await _ask(session, "/v3/auth/authenticate", who))[
                    "token"
                ]
            yield session

    async def _follow(self, session: aiohttp.ClientSession, tell: Callable[[bytes | None], None]) -> None:
        key = base64.b64encode(self.key.encode()).decode()
        found = await _ask(session, "/v3/kv/range", {"key": key})
        if self._failing:
            logger.warning("etcd can be asked for %s again", self.key)
            self._failing = False
        self._tell(tell, *found.get("kvs", ({},)))
        begin = {"key": key, "start_revision": str(int(found["header"]["revision"]) + 1)}
        limits = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=SILENCE_SECONDS)
        async with session.post("/v3/watch", json={"create_request": begin}, timeout=limits) as answer:
            answer.raise_for_status()
            while True:
                try:
                    line = await answer.content.readline()
                except aiohttp.SocketTimeoutError:
                    raise _Silent from None
                if not line:
                    raise aiohttp.ClientPayloadError("the server ended the watch")
                said = msgspec.json.decode(line)
                if "error" in said or said["result"].get("canceled"):
                    raise ValueError(f"it watches no more: {line.decode(errors='replace')[:200]}")
                for event in said["result"].get("events", ()):
                    self._tell(tell, event["kv"], deleted=event.get("type") == "DELETE")

    def _tell(
        self, tell: Callable[[bytes | None], None], kv: Mapping[str, Any], *, deleted: bool = False
    ) -> None:
        """What was told before is not told again."""
        found = (
            (0, None)
            if deleted or not kv
            else (int(kv["mod_revision"]), base64.b64decode(kv.get("value", "")))
        )
        # A new store counts revisions from the beginning, so another value may have the one that was told.
        if found != self._told:
            self._told = found
            tell(found[1])


async def _ask(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with session.post(path, json=body, timeout=limits) as answer:
        text = await answer.text()
        if answer.status != 200:
            raise ValueError(f"{path} is answered with {answer.status}: {text[:200]}")
        return msgspec.json.decode(text, type=dict[str, Any])
