"""Frames: what is refused, and with which sentence."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.claim_messages import ClaimRoom, check_room
from wavepp_worker.handoff.connection.channel import FRAME_LIMIT_BYTES, Channel, PeerLost, PeerSilent
from wavepp_worker.handoff.connection.message import encode
from wavepp_worker.handoff.pull_messages import FROM_PULLER, TO_PULLER, KvPiece, Pull, check_request

from tests.support.handoff_sides import SECRET

HOST = "127.0.0.1"


def talk(conversation: Callable[[Channel, socket.socket], Awaitable[Any]]) -> Any:
    """Run ``conversation(channel, peer)``: a channel and the plain socket at its other end."""

    async def run() -> Any:
        with socket.create_server((HOST, 0)) as server:
            peer = socket.create_connection(server.getsockname())
            channel = Channel(server.accept()[0], "the peer")
        try:
            return await asyncio.wait_for(conversation(channel, peer), 5)
        finally:
            channel.close()
            peer.close()

    return asyncio.run(run())


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def test_messages_and_raw_bytes_arrive_as_sent() -> None:
    piece = KvPiece(request_id="a", start=3, end=5, size=1 << 20)
    data = os.urandom(1 << 20)

    async def conversation(channel: Channel, peer: socket.socket) -> None:
        other = Channel(peer, "us")
        buffer = bytearray(1 << 20)

        async def send() -> None:
            await other.send(piece)
            await other.send_raw(memoryview(data))

        sending = asyncio.ensure_future(send())
        assert await channel.receive(TO_PULLER) == piece
        await channel.receive_into(memoryview(buffer))
        await sending
        assert buffer == data

    talk(conversation)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (
            struct.pack("<I", FRAME_LIMIT_BYTES + 1),
            r"announced a message of \d+ bytes; at most \d+ are allowed",
        ),
        (frame(b"\xc1"), "does not belong here"),
        (frame(encode(ClaimRoom(room=1, secret=SECRET, wait=1.0))), "does not belong here"),
        (frame(b"\x82\xa4type\xa4Pull\xaarequest_id\x05"), "does not belong here"),
    ],
    ids=["too large", "no msgpack", "of another connection", "of another type"],
)
def test_refused(sent: bytes, sentence: str) -> None:
    async def conversation(channel: Channel, peer: socket.socket) -> None:
        peer.sendall(sent)
        with pytest.raises(HandoffError, match=sentence):
            await channel.receive(FROM_PULLER)

    talk(conversation)


def test_an_end_in_the_middle_of_a_frame_is_a_lost_peer() -> None:
    async def conversation(channel: Channel, peer: socket.socket) -> None:
        peer.sendall(frame(encode(Pull(request_id="a", secret=SECRET, wait=1.0)))[:-1])
        peer.close()
        with pytest.raises(PeerLost, match="the peer closed the connection"):
            await channel.receive(FROM_PULLER)

    talk(conversation)


def test_the_last_message_arrives_though_input_is_unread() -> None:
    """A plain close would reset the connection."""

    async def conversation(channel: Channel, peer: socket.socket) -> None:
        peer.sendall(b"x" * 300_000)
        await asyncio.sleep(0.05)
        await channel.send(Pull(request_id="last", secret=SECRET, wait=0.0))
        await channel.finish(0.2)
        received = b""
        while data := peer.recv(4096):
            received += data
        assert b"last" in received

    talk(conversation)


@pytest.mark.parametrize("ending", ["while it sends", "while it receives"])
def test_of_a_peer_that_is_lost_nothing_is_kept(ending: str) -> None:
    """Ranks never look for garbage that is old: a circle of errors would keep the KV that was on its way for ever."""
    buffer = np.zeros(16 << 20, np.uint8)
    kept = weakref.ref(buffer)

    async def conversation(channel: Channel, peer: socket.socket) -> None:
        nonlocal buffer
        view = memoryview(buffer)
        del buffer

        def hang_up() -> None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()

        asyncio.get_running_loop().call_later(0.05, hang_up)
        with contextlib.suppress(PeerLost):
            await (channel.send_raw(view) if ending == "while it sends" else channel.receive_into(view))

    gc.disable()
    try:
        talk(conversation)
        assert kept() is None
    finally:
        gc.enable()


def test_nobody_listens() -> None:
    async def run() -> None:
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(PeerLost, match=f"cannot connect from {HOST} to {HOST}:{port}"):
            await Channel.connect(HOST, port, HOST, 1.0)

    asyncio.run(run())


def test_who_listens_and_does_not_accept_is_silent() -> None:
    async def run() -> None:
        with socket.create_server((HOST, 0), backlog=0) as server, socket.socket() as first:
            first.connect(server.getsockname())
            with pytest.raises(PeerSilent, match=r"no answer within 0\.2 s"):
                await Channel.connect(HOST, server.getsockname()[1], HOST, 0.2)

    asyncio.run(run())


def test_messages_of_other_rooms_and_requests_are_refused() -> None:
    check_room(ClaimRoom(room=1, secret=SECRET, wait=0.0), 1)
    with pytest.raises(HandoffError, match="a ClaimRoom for room 1 arrived on the connection of room 2"):
        check_room(ClaimRoom(room=1, secret=SECRET, wait=0.0), 2)
    check_request(Pull(request_id="a", secret=SECRET, wait=0.0), "a")
    with pytest.raises(HandoffError, match="a Pull for request 'a' arrived on the connection of request 'b'"):
        check_request(Pull(request_id="a", secret=SECRET, wait=0.0), "b")
