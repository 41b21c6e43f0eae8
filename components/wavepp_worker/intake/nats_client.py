"""A NATS client that whoever may send a message cannot end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import Error, MaxPayloadError

_STATUS = "Status"
_STORED_IN = "Nats-Stream"
_STAYS_OPEN = ("permissions violation", "maximum subscriptions")
"""What the server says of one subject, and goes on with the connection."""


class NatsClient(Client):
    """As nats-py's, but for headers of others, and for what the server refuses.

    That one stops reading where a message's headers are none, until its pings are not answered, and takes a status
    that the sender of a stored message gave it for one of the server. It closes for good on almost any error that the
    server says, and publishes what the server ends a connection for, as it counts no headers. This one is closed by
    whoever opened it alone.
    """

    def __init__(self) -> None:
        """Nothing is connected yet."""
        super().__init__()
        self._left = False

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        """As of nats-py.

        Raises:
            MaxPayloadError: it is more than the server takes, with its headers.
        """
        if len(payload) + headers_size(headers) > self.max_payload:
            raise MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def close(self) -> None:
        """Leave."""
        self._left = True
        await super().close()

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """The headers of a message; None where they cannot be read."""
        try:
            found = await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None
        if found is not None and _STORED_IN in found:
            found.pop(_STATUS, None)
        return found

    async def _process_err(self, err_msg: str) -> None:
        """The server says an error: after most it ends the connection, and may have it back at once."""
        error = Error("nats: " + err_msg.strip("'"))
        await self._error_cb(error)
        if not any(each in err_msg for each in _STAYS_OPEN):
            await self._process_op_err(error)

    async def _process_connect_init(self) -> None:
        """Begin a connection; what fails in it is tried again, whatever it is: also a file of keys that is none."""
        try:
            await super()._process_connect_init()
        except (OSError, asyncio.TimeoutError, Error):
            raise
        except Exception as error:
            raise Error(f"nats: {type(error).__name__}: {error}") from error

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close for good where somebody leaves, else connect anew."""
        there = self.is_connected or self.is_reconnecting
        if there and status == Client.CLOSED and not self._left:
            await self._process_op_err(Error("nats: the connection was given up"))
        else:
            await super()._close(status, do_cbs)


def headers_size(headers: Mapping[str, str] | None) -> int:
    """What the server counts for a message's headers, beside its body."""
    if headers is None:
        return 0
    lines = sum(len(f"{key.strip()}: {value.strip()}".encode()) + 2 for key, value in headers.items())
    return len(b"NATS/1.0\r\n") + lines + len(b"\r\n")
