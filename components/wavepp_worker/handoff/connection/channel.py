"""One asyncio TCP connection that carries length-prefixed messages, and raw bytes after those that say so."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.message import HandoffMessage, encode

FRAME_LIMIT_BYTES = 4 << 20
"""Bytes of the largest message accepted; KV bytes do not count, they are not part of a message."""

ASK_LIMIT_BYTES = 64 << 10
"""Bytes of the largest message taken from whoever asks for KV: anybody can reach the ports that take them."""

HELLO_SECONDS = 10.0
"""A connection that has not said what it wants by then is closed."""

GONE_SECONDS = (10, 5, 3)
"""A peer's host that is silent for the first is asked, again and again after the second; the third question is
the last."""

_LENGTH = struct.Struct("<I")
_DRAIN_BYTES = 1 << 16
_REASON_CHARACTERS = 200  # a decoder's reason may quote the message

T = TypeVar("T")
Hello = TypeVar("Hello")


class PeerLost(HandoffError):
    """The connection ended or broke; the same request may be tried again over a new one."""


class PeerSilent(PeerLost):
    """Nobody answered in time: the peer may be gone, or it or this process did not run for a while."""


class Channel:
    """A connected socket. One task may send while another receives, messages without raw bytes also several.

    A cancelled ``send`` or ``receive`` may leave half a message behind: afterwards that direction is only
    good for closing.

    Attributes:
        on_welcome: called by ``welcome``; whoever accepted the connection wants to know.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), GONE_SECONDS, strict=True):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._sock = sock
        self.peer = peer
        self._sending = asyncio.Lock()
        self.on_welcome: Callable[[], None] = lambda: None

    @classmethod
    async def connect(cls, host: str, port: int, local_host: str, timeout: float) -> Channel:
        """Connect to ``host:port`` from ``local_host``.

        Raises:
            PeerSilent: nobody answered within ``timeout`` seconds.
            PeerLost: the connection was refused, or cannot be tried here.
        """
        peer = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        sock: socket.socket | None = None
        try:
            async with deadline.timeout(timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, address = found[0]
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                sock.bind((local_host, 0))
                await loop.sock_connect(sock, address)
        except (OSError, asyncio.TimeoutError) as error:
            if sock is not None:
                sock.close()
            text = f"cannot connect from {local_host} to {peer}"
            if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
                raise PeerSilent(f"{text}: no answer within {timeout:.1f} s") from error
            raise PeerLost(f"{text}: {error}") from error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        return cls(sock, peer)

    async def send(self, message: HandoffMessage) -> None:
        """Send one message; returns once the kernel has taken all of it.

        Raises:
            PeerLost: the connection broke.
        """
        body = encode(message)
        async with self._sending:
            await self.send_raw(memoryview(_LENGTH.pack(len(body)) + body))

    async def send_raw(self, data: memoryview) -> None:
        """Send bytes that a message before has announced; raises as ``send``."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except OSError as error:
            raise self._broke(error) from error

    async def receive(self, decoder: msgspec.msgpack.Decoder[T], limit: int = FRAME_LIMIT_BYTES) -> T:
        """The next message, of ``limit`` bytes at most.

        Raises:
            PeerLost: the connection ended or broke.
            HandoffError: the frame is too large, or is not a message of this direction.
        """
        header = bytearray(_LENGTH.size)
        await self.receive_into(memoryview(header))
        (length,) = _LENGTH.unpack(header)
        if length > limit:
            raise HandoffError(
                f"{self.peer} announced a message of {length} bytes; at most {limit} are allowed. "
                "It is not a hand-off peer of this version."
            )
        body = bytearray(length)
        await self.receive_into(memoryview(body))
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error)[:_REASON_CHARACTERS]
            raise HandoffError(f"{self.peer} sent a message that does not belong here: {reason}") from error

    async def receive_hello(self, decoder: msgspec.msgpack.Decoder[T], kind: type[Hello]) -> Hello | None:
        """The peer's first message; None if the peer is gone or took too long to say it.

        Raises:
            HandoffError: it is not a ``kind``.
        """
        try:
            async with deadline.timeout(HELLO_SECONDS):
                hello = await self.receive(decoder, ASK_LIMIT_BYTES)
        except (PeerLost, asyncio.TimeoutError):
            return None
        if not isinstance(hello, kind):
            raise HandoffError(f"{self.peer} began with {type(hello).__name__} instead of {kind.__name__}")
        return hello

    def welcome(self) -> None:
        """The peer has said what it wants and may stay."""
        self.on_welcome()

    async def receive_into(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes.

        Raises:
            PeerLost: the connection ended or broke before that.
        """
        loop = asyncio.get_running_loop()
        filled = 0
        while filled < len(view):
            try:
                count = await loop.sock_recv_into(self._sock, view[filled:])
            except OSError as error:
                raise self._broke(error) from error
            if not count:
                raise PeerLost(f"{self.peer} closed the connection")
            filled += count

    async def finish(self, timeout: float) -> None:
        """Close so that what was sent still arrives: discard what comes in until the peer closes too.

        Closing a socket with unread bytes resets the connection, which may overtake the last message.
        """
        scratch = memoryview(bytearray(_DRAIN_BYTES))
        loop = asyncio.get_running_loop()

        try:
            self._sock.shutdown(socket.SHUT_WR)
            async with deadline.timeout(timeout):
                while await loop.sock_recv_into(self._sock, scratch):
                    continue
        except (OSError, asyncio.TimeoutError) as error:
            forget_frames(error)
        finally:
            self.close()

    async def say_last(self, message: HandoffMessage, timeout: float) -> None:
        """Send a last message and ``finish``, each within ``timeout``; a peer that is gone needs no telling."""
        try:
            async with deadline.timeout(timeout):
                await self.send(message)
        except (PeerLost, asyncio.TimeoutError):
            return
        await self.finish(timeout)

    def close(self) -> None:
        """Close at once; idempotent. No task may be sending or receiving."""
        self._sock.close()

    def _broke(self, error: OSError) -> PeerLost:
        forget_frames(error)
        return PeerLost(f"the connection to {self.peer} broke: {error}")


def forget_frames(error: BaseException) -> None:
    """To be called with what a socket call of the event loop raised, once it is caught.

    The call's future has the error, whose traceback has the call's frame, which has the future: a circle that keeps
    the buffer of the call, too, until the collector finds it, and ranks never have old objects collected.
    """
    error.__traceback__ = None
