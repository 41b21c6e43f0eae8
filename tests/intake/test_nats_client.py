"""Headers of whoever sends a message, without a server; with one they are in ``test_intake``."""

from __future__ import annotations

import asyncio

import pytest
from wavepp_worker.intake.nats_client import NatsClient


def headers_of(block: bytes) -> dict[str, str] | None:
    async def read() -> dict[str, str] | None:
        return await NatsClient()._process_headers(block)

    return asyncio.run(read())


@pytest.mark.parametrize("block", [b"NATS/1.0", b"\r\n", b"NATS/1.0 \xff\xff\r\n\r\n"])
def test_what_is_no_block_of_headers_is_none(block: bytes) -> None:
    assert not headers_of(block)


def test_a_status_is_of_the_server_unless_it_was_stored() -> None:
    assert headers_of(b"NATS/1.0 404 No Messages\r\n\r\n") == {"Status": "404", "Description": "No Messages"}
    stored = headers_of(b"NATS/1.0\r\nNats-Stream: s\r\nStatus: 503\r\nown: word\r\n\r\n")
    assert stored == {"Nats-Stream": "s", "own": "word"}
