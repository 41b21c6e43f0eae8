"""Headers of whoever sends a message, and what a server refuses; with jobs they are in ``test_intake``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import MaxPayloadError
from wavepp_worker.intake.nats_client import NatsClient, headers_size

from tests.support.nats_servers import NatsServer
from tests.support.waiting import until


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


def with_client(server: NatsServer, work: Callable[[NatsClient], Awaitable[None]]) -> None:
    async def connected() -> None:
        client = NatsClient()
        await client.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        try:
            await asyncio.wait_for(work(client), 30)
        finally:
            await client.close()
            assert client.is_closed

    asyncio.run(connected())


async def is_back(client: NatsClient, losses: int) -> None:
    await until(lambda: client.stats["reconnects"] >= losses and client.is_connected)
    await client.flush()


def test_headers_count_against_what_a_server_takes(tmp_path: Path) -> None:
    """The server ends a connection that sends more, which nobody else's message is to pay for."""
    server = NatsServer(tmp_path, "max_payload: 1KB")
    server.start()

    async def work(client: NatsClient) -> None:
        for headers in (None, {}, {"Nats-Msg-Id": "a"}, {" key ": " \u00fc \n\u00fc ", "b": ""}):
            room = 1024 - headers_size(headers)
            heard = await client.subscribe("s", max_msgs=1)
            await client.publish("s", b"x" * room, headers=headers)
            assert len((await heard.next_msg(5)).data) == room
            with pytest.raises(MaxPayloadError):
                await client.publish("s", b"x" * (room + 1), headers=headers)
        assert client.stats["reconnects"] == 0

    try:
        with_client(server, work)
    finally:
        server.close()


def test_what_a_server_refuses_costs_a_connection_and_not_the_client(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "max_payload: 1KB")
    server.start()

    async def work(client: NatsClient) -> None:
        heard = await client.subscribe("s")
        # As if the server had been told to take less meanwhile.
        await Client.publish(client, "s", b"x" * 1000, headers={"a": "b" * 100})
        await is_back(client, 1)
        await client.publish("s", b"later")
        assert (await heard.next_msg(5)).data == b"later"

    try:
        with_client(server, work)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("word", "losses"),
    [
        ("authorization violation", 1),
        ("permissions violation for publish to 's'", 0),
        ("stale connection", 1),
    ],
)
def test_only_what_is_of_one_subject_leaves_a_connection_as_it_is(
    server: NatsServer, word: str, losses: int
) -> None:
    async def work(client: NatsClient) -> None:
        await client._process_err(f"'{word}'")
        await is_back(client, losses)
        await asyncio.sleep(0.1)
        assert client.stats["reconnects"] == losses

    with_client(server, work)


def test_nobody_but_who_leaves_closes_a_client(server: NatsServer) -> None:
    async def work(client: NatsClient) -> None:
        await client._close(Client.CLOSED)
        await is_back(client, 1)

    with_client(server, work)


def test_whatever_fails_in_a_connection_is_tried_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file of keys that is replaced just then."""
    fails = [KeyError("key")]

    async def work(client: NatsClient) -> None:
        made = Client._connect_command

        def command(client: Client) -> bytes:
            if fails:
                raise fails.pop()
            return made(client)

        monkeypatch.setattr(Client, "_connect_command", command)
        await client._process_err("stale connection")
        await is_back(client, 1)
        assert not fails

    with_client(server, work)
