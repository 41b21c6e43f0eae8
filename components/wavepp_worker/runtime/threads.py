"""How a rank's two threads talk: typed events through an inbox that can be waited on beside sockets."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import zmq

T = TypeVar("T")


@dataclass(frozen=True)
class LaneAdmitted:
    """WAVE to LOOP on rank 0: tokens ``[start, end)`` of a request may be scheduled."""

    request_id: str
    start: int
    end: int


@dataclass(frozen=True)
class LaneAborted:
    """WAVE to LOOP on rank 0: schedule nothing more of a request."""

    request_id: str


@dataclass(frozen=True)
class LaneStarted:
    """LOOP to WAVE on rank 0: the request's blocks are its own; it holds no lease any more."""

    request_id: str


@dataclass(frozen=True)
class LaneScheduled:
    """LOOP to WAVE on rank 0: all of the request's chunks are in waves; its lane is free."""

    request_id: str


@dataclass(frozen=True)
class LaneEnded:
    """LOOP to WAVE on rank 0: no wave carries the request any more, and none will.

    Attributes:
        aborted: all ranks have yet to let go of it; otherwise it ran to its end.
    """

    request_id: str
    aborted: bool


LaneAdvance = LaneStarted | LaneScheduled | LaneEnded


class Inbox(Generic[T]):
    """A queue from one thread to another whose arrival can be polled with ZeroMQ sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()
        self.socket = context.socket(zmq.PAIR)
        self.socket.bind(f"inproc://{name}")
        self._bell = context.socket(zmq.PAIR)
        self._bell.connect(f"inproc://{name}")

    def put(self, item: T) -> None:
        """Add an item; called by the sending thread only."""
        self._queue.put(item)
        self._bell.send(b"")

    def take(self) -> list[T]:
        """All items that have arrived; called by the receiving thread only."""
        while self.socket.poll(0):
            self.socket.recv()
        items = []
        while True:
            try:
                items.append(self._queue.get_nowait())
            except Empty:
                return items

    def close(self) -> None:
        self._bell.close(linger=0)
        self.socket.close(linger=0)
