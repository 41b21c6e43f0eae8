"""A NATS client that whoever may send a message cannot end."""

from __future__ import annotations

from nats.aio.client import Client


class NatsClient(Client):
    """As nats-py's, which stops reading where a message's headers are none, until its pings are not answered."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """The headers of a message; None where they cannot be read."""
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None
