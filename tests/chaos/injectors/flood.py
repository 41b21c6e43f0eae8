"""Connections that say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

CONNECTIONS = 200
"""To each port."""


@contextlib.asynccontextmanager
async def idle_connections(addresses: Sequence[tuple[str, int]]) -> AsyncIterator[None]:
    """Hold ``CONNECTIONS`` to each address; those that are refused or cut off are not tried again."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for host, port in addresses:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            for _ in range(CONNECTIONS):
                idle = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                idle.setblocking(False)
                try:
                    await asyncio.wait_for(loop.sock_connect(idle, (host, port)), 0.5)
                except (OSError, asyncio.TimeoutError):
                    break
        yield
