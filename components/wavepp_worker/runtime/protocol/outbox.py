"""A sending end that several threads share: events from a rank to the engine, commands the other way."""

from __future__ import annotations

import threading

import zmq

from wavepp_worker.runtime.protocol.message import Message, encode


class Outbox:
    """Sends messages in the order of the calls. Thread-safe; never waits."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """Connect to ``address``; messages sent before the other side listens are kept."""
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.connect(address)

    def send(self, *messages: Message) -> None:
        """Those of one call travel together, and wake who reads them once."""
        if messages:
            with self._lock:
                if not self._socket.closed:
                    self._socket.send_multipart([encode(message) for message in messages])

    def close(self) -> None:
        with self._lock:
            self._socket.close(linger=1000)
