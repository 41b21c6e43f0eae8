"""Requests that Dynamo drops before the worker's handler hears of them.

A worker answers each request over a connection of its own to the frontend. Where that cannot be opened, mostly as the
process has no descriptor left, Dynamo counts the request as failed and goes on, and the frontend waits for its answer
for ever.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping

import aiohttp

PORT_VARIABLE = "DYN_SYSTEM_PORT"
HOST_VARIABLE = "DYN_SYSTEM_HOST"
LOOK_SECONDS = 5.0
"""That a look at the count may take."""

_COUNT = re.compile(
    r'^dynamo_component_errors_total\{[^}]*error_type="response_stream"[^}]*\} (\S+)$', re.MULTILINE
)
_ANY_HOST = ("", "0.0.0.0", "::", "[::]")
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class DroppedRequests:
    """Looks at Dynamo's own count, which is among the worker's metrics and nowhere else. For one event loop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Nothing is connected yet; without a port for metrics nothing can be counted."""
        port = environment.get(PORT_VARIABLE, "")
        host = environment.get(HOST_VARIABLE, "")
        self._url = (
            f"http://{'127.0.0.1' if host in _ANY_HOST else host}:{port}/metrics"
            if port.isdecimal() and int(port)
            else None
        )
        self._session: aiohttp.ClientSession | None = None
        self._count = 0.0

    async def more(self) -> bool:
        """Whether some were dropped since the last look, or may have been, as there is no descriptor for a look."""
        if self._url is None:
            return False
        if self._session is None:
            # One connection, kept: it has to be there when no other can be opened.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=3600.0),
                timeout=aiohttp.ClientTimeout(total=LOOK_SECONDS),
            )
        try:
            async with self._session.get(self._url) as answer:
                text = await answer.text()
        except aiohttp.ClientConnectorError as error:
            return error.errno in _NO_DESCRIPTORS
        except (aiohttp.ClientError, TimeoutError):
            return False
        before, self._count = self._count, sum(map(float, _COUNT.findall(text)))
        return self._count > before

    async def close(self) -> None:
        """Look no more; idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None
