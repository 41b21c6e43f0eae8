"""A NATS client that whoever may send a message cannot end."""

from __future__ import annotations

from nats.aio.client import Client

_STATUS = "Status"
_STORED_IN = "Nats-Stream"


class NatsClient(Client):
    """As nats-py's, but for headers of others.

    That one stops reading where a message's headers are none, until its pings are not answered, and takes a status
    that the sender of a stored message gave it for one of the server.
    """

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """The headers of a message; None where they cannot be read."""
        try:
            found = await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None
        if found is not None and _STORED_IN in found:
            found.pop(_STATUS, None)
        return found
