"""How a rank's two threads talk: typed events through an inbox that can be waited on beside sockets."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import zmq

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue from one thread to another whose arrival can be polled with ZeroMQ sockets.

    Putting never waits: two threads that have much to tell each other at once would wait for each other.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()
        self._rung = False
        self.socket = context.socket(zmq.PAIR)
        self.socket.set_hwm(0)
        self.socket.bind(f"inproc://{name}")
        self._bell = context.socket(zmq.PAIR)
        self._bell.set_hwm(0)
        self._bell.connect(f"inproc://{name}")

    def put(self, item: T, *, wake: bool = True) -> None:
        """Add an item; called by the sending thread only. Without ``wake``, it is taken with what comes next."""
        self._queue.put(item)
        # Once until the other side looks: each ring costs it and us a system call, and us the interpreter.
        if wake and not self._rung:
            self._rung = True
            self._bell.send(b"")

    def take(self) -> list[T]:
        """All items that have arrived; called by the receiving thread only."""
        while self.socket.poll(0):
            self.socket.recv()
        # Before the items are taken: what is put from now on may come too late for this time, and rings.
        self._rung = False
        items = []
        while True:
            try:
                items.append(self._queue.get_nowait())
            except Empty:
                return items

    def close(self) -> None:
        self._bell.close(linger=0)
        self.socket.close(linger=0)
