"""Accepting goes on, whatever strangers do and whatever runs out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wavepp_worker.handoff.claim_messages import FROM_CLAIMANT, ClaimRoom
from wavepp_worker.handoff.connection import channel as channel_module
from wavepp_worker.handoff.connection import listener as module
from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.connection.listener import Listener
from wavepp_worker.handoff.secret import Secret

HOST = "127.0.0.1"
HELLO = ClaimRoom(room=1, secret=Secret.fresh(), wait=1.0)


async def answer(channel: Channel) -> None:
    """Says back what it was told, and stays until the peer leaves."""
    hello = await channel.receive_hello(FROM_CLAIMANT, ClaimRoom)
    if hello is None:
        return
    channel.welcome()
    await channel.send(hello)
    with contextlib.suppress(Exception):
        await channel.receive(FROM_CLAIMANT)


@pytest.fixture
def serve() -> Iterator[Callable[[], Listener]]:
    made: list[Listener] = []

    def start() -> Listener:
        made.append(Listener(HOST, 0, "test"))
        made[-1].start(answer)
        return made[-1]

    yield start
    for each in made:
        each.close(5.0)


async def is_served(listener: Listener) -> Channel:
    """A new connection gets its answer; returns it, still open."""
    channel = await Channel.connect(HOST, listener.port, HOST, 2.0)
    await channel.send(HELLO)
    assert await asyncio.wait_for(channel.receive(FROM_CLAIMANT), 5) == HELLO
    return channel


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED])
def test_accepting_goes_on_after_an_error(serve: Any, monkeypatch: Any, error: int) -> None:
    tries: list[float] = []
    accept = asyncio.SelectorEventLoop.sock_accept

    async def failing(loop: Any, sock: socket.socket) -> Any:
        tries.append(time.monotonic())
        if len(tries) <= 4:
            raise OSError(error, os.strerror(error))
        return await accept(loop, sock)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", failing)
    listener = serve()

    async def run() -> None:
        (await is_served(listener)).close()

    asyncio.run(run())
    if error != errno.ECONNABORTED:
        assert tries[4] - tries[0] >= 3 * module.ACCEPT_RETRY_SECONDS, "it must not spin"


def test_without_descriptors_silent_connections_make_room(serve: Any, monkeypatch: Any) -> None:
    accept, full = asyncio.SelectorEventLoop.sock_accept, [False]

    async def maybe(loop: Any, sock: socket.socket) -> Any:
        if full[0]:
            full[0] = False
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(loop, sock)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", maybe)
    listener = serve()

    async def run() -> None:
        silent = await Channel.connect(HOST, listener.port, HOST, 2.0)
        await asyncio.sleep(0.1)
        full[0] = True
        # The pending accept takes this one; the next fails for want of a descriptor.
        (await is_served(listener)).close()
        with pytest.raises(channel_module.PeerLost):
            await asyncio.wait_for(silent.receive(FROM_CLAIMANT), 3)
        silent.close()
        (await is_served(listener)).close()

    asyncio.run(run())


def test_a_flood_of_silent_connections_shuts_nobody_out(serve: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(module, "MAX_STRANGERS", 20)
    listener = serve()

    async def run() -> None:
        known = await is_served(listener)
        flood = [socket.create_connection((HOST, listener.port)) for _ in range(200)]
        try:
            began = time.monotonic()
            other = await is_served(listener)
            assert time.monotonic() - began < 3
            await asyncio.sleep(0.1)
            assert len(listener._serving) <= 22
            other.close()
            await known.send(HELLO)  # still there
        finally:
            for sock in flood:
                sock.close()
            known.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert 1 <= len(caplog.records) <= 3, "a flood of connections is no flood of warnings"


def test_whoever_has_spoken_when_it_is_accepted_is_heard(monkeypatch: Any) -> None:
    """Those that wait in the backlog, as after this process stood still, are accepted one right after the other."""
    monkeypatch.setattr(module, "MAX_STRANGERS", 4)
    listener = Listener(HOST, 0, "test")

    async def run() -> None:
        channels = [await Channel.connect(HOST, listener.port, HOST, 2.0) for _ in range(100)]
        for channel in channels:
            await channel.send(HELLO)
        listener.start(answer)
        for channel in channels:
            assert await asyncio.wait_for(channel.receive(FROM_CLAIMANT), 5) == HELLO
            channel.close()

    try:
        asyncio.run(run())
    finally:
        listener.close(5.0)


def test_more_connections_than_there_may_be_wait_until_one_ends(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    listener = serve()

    async def run() -> None:
        first, second = await is_served(listener), await is_served(listener)
        third = asyncio.ensure_future(is_served(listener))
        await asyncio.sleep(0.2)
        assert not third.done()
        first.close()
        (await asyncio.wait_for(third, 3)).close()
        second.close()

    asyncio.run(run())


def test_a_first_message_that_dribbles_in_is_cut_off(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(channel_module, "HELLO_SECONDS", 0.4)
    listener = serve()
    with socket.create_connection((HOST, listener.port)) as slow:
        slow.settimeout(5)
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in b"\x40\0\0\0" + bytes(60):
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""


HOSTILE = {
    "a length beyond all limits": b"\xff\xff\xff\xff",
    "no msgpack": b"\x04\0\0\0\xc1\xc1\xc1\xc1",
    "nothing": b"\0\0\0\0",
    "nested a thousandfold": (65000).to_bytes(4, "little")
    + b"\x82\xa4type\xa9ClaimRoom\xa1x"
    + b"\x91" * 64982,
    "no text": b"\x16\0\0\0\x82\xa4type\xa9ClaimRoom\xa4\xff\xfe\xfd\xfc",
    "a list of four billion": b"\x05\0\0\0\xdd\xff\xff\xff\xff",
    "cut short": b"\x40\0\0\0\x82\xa4type",
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_garbage_is_hung_up_on_and_others_are_served(
    serve: Any, monkeypatch: Any, caplog: Any, sent: bytes
) -> None:
    monkeypatch.setattr(channel_module, "HELLO_SECONDS", 0.5)
    listener = serve()
    with caplog.at_level(logging.WARNING), socket.create_connection((HOST, listener.port)) as hostile:
        hostile.settimeout(5)
        hostile.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert hostile.recv(1) == b""

    async def run() -> None:
        (await is_served(listener)).close()

    asyncio.run(run())
    assert all(len(record.getMessage()) < 400 and not record.exc_info for record in caplog.records)
