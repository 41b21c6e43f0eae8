"""The messages between two neighbouring ranks that share slots; every wait has a bound."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
import zmq

from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.slots import SlotMessage
from wavepp_worker.runtime.rank.tensor_plane import GIVE_WAY_SECONDS

_decoder = msgspec.msgpack.Decoder(SlotMessage)

Kind = TypeVar("Kind", bound=SlotMessage)


class SlotLink:
    """One end; used by one thread at a time."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, timeout: float, *, binds: bool
    ) -> None:
        """``binds``: of the two, one does, and the other connects. ``timeout``: seconds that an answer may take."""
        self._socket = context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        if binds:
            self._socket.bind(address)
        else:
            self._socket.connect(address)
        self._timeout = timeout

    def send(self, message: SlotMessage) -> None:
        self._socket.send(encode(message))

    def receive(self, kind: type[Kind], was_to: str, timeout: float | None = None) -> Kind:
        """The other rank's next message.

        Args:
            was_to: do what, the other rank.
            timeout: seconds, if not the link's.

        Raises:
            EngineDead: it does not come.
            PositionMismatch: it is of another kind.
        """
        seconds = self._timeout if timeout is None else timeout
        if not self._socket.poll(round(1000 * seconds)):
            time.sleep(GIVE_WAY_SECONDS)
            raise EngineDead(
                f"the neighbouring rank, which was to {was_to}, has died or hangs (nothing came for {seconds:g} s)"
            )
        message = _decoder.decode(self._socket.recv())
        if not isinstance(message, kind):
            raise PositionMismatch(f"the neighbouring rank was to {was_to}, and sent {message}")
        return message

    def close(self) -> None:
        self._socket.close(linger=500)
