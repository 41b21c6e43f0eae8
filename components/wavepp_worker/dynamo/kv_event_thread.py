"""The thread that publishes KV events to Dynamo, over a ZeroMQ socket that Dynamo's side of this process reads."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path

import zmq

from wavepp_worker.dynamo.kv_event_wire import message
from wavepp_worker.dynamo.kv_events import KvEvent, PendingEvents
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.socket_directory import make_socket_directory

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
POLL_MS = 500
"""How long the thread looks for news at most before it looks whether it shall stop."""
MOST_WAITING = 64
"""Messages that may wait in the socket; what is more waits as blocks that have changed, no more than the pool holds."""
MOST_AT_ONCE = 256
BURST_SECONDS = 0.1
"""So long so many messages take: a router that falls behind by more than the 1,024 that Dynamo keeps forgets much."""
FIRST_AGAIN_SECONDS = 5.0
"""After Dynamo has begun to read, until what is below the device is told again: routers know the worker by then."""
AGAIN_SECONDS = 30.0
"""From then on, how often.

So long a router that comes later may not know what is in host memory and on disk, and one that missed events may not
notice it if nothing changes.
"""


class KvEventThread:
    """Publishes index changes from a thread of its own; the only publisher of its worker.

    Nothing is lost: while nobody reads, changes wait; and whoever begins to read, also anew after the connection
    broke, is told that all is cleared, and then all there is.
    """

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._pending = PendingEvents(block_size)
        self._lock = threading.Lock()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._directory: Path | None = None
        self._news, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def endpoint(self) -> str:
        """Where Dynamo reads the events, once started."""
        assert self._directory is not None
        return f"ipc://{self._directory}/events"

    def on_index(self, delta: IndexDelta) -> None:
        """Take in one change; any thread, in the order of the changes.

        Never waits for a reader; may wait for the lock while the thread puts what has changed in order.
        """
        with self._lock:
            self._pending.apply(delta)
            if not self._stopping:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake, b"x")

    def start(self) -> None:
        """Publish what is pending and all that follows, to whoever reads; once.

        Raises:
            ConfigError: the temporary directory's path is too long for a socket.
            OSError: there can be no socket.
        """
        # Readable by this user alone: events have the tokens of prompts.
        self._directory = make_socket_directory()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.XPUB)
        # Without, what does not fit is dropped in silence.
        socket.set(zmq.XPUB_NODROP, 1)
        # Of every reader that comes or goes, not only of the first and the last.
        socket.set(zmq.XPUB_VERBOSER, 1)
        # Otherwise a reader gets what is on its way to others before it is known here.
        socket.set(zmq.XPUB_MANUAL, 1)
        socket.set(zmq.SNDHWM, MOST_WAITING)
        socket.set(zmq.LINGER, 0)
        socket.bind(self.endpoint)
        self._thread = threading.Thread(
            target=self._run, args=(context, socket), name="kv-events", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; idempotent, also if never started."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"x")
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        if self._thread is None or not self._thread.is_alive():
            os.close(self._news)
            os.close(self._wake)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._news, zmq.POLLIN)
        readers, number, unsent, again, burst = 0, 0, list[KvEvent](), 0.0, 0.0
        try:
            while not self._stopping:
                if unsent:
                    # Whoever reads is behind: until there is room, or a reader comes or goes.
                    socket.poll(POLL_MS, zmq.POLLIN | zmq.POLLOUT)
                else:
                    poller.poll(0 if readers and self._pending.telling_again else POLL_MS)
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._news, 4096)
                while socket.poll(0):
                    told = socket.recv()
                    comes, topic = told[:1] == b"\x01", told[1:]
                    socket.set(zmq.SUBSCRIBE if comes else zmq.UNSUBSCRIBE, topic)
                    readers += 1 if comes else -1
                    if comes:
                        unsent.clear()
                        again = time.monotonic() + FIRST_AGAIN_SECONDS
                        with self._lock:
                            self._pending.begin_anew()
                if not readers:
                    continue
                if not unsent:
                    with self._lock:
                        if time.monotonic() > again:
                            again = time.monotonic() + AGAIN_SECONDS
                            self._pending.tell_again()
                        unsent = self._pending.take()
                while unsent:
                    try:
                        socket.send_multipart(message(number, unsent[:1], self._block), zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    del unsent[0]
                    number += 1
                    if number % MOST_AT_ONCE == 0:
                        time.sleep(max(0.0, burst + BURST_SECONDS - time.monotonic()))
                        burst = time.monotonic()
        except Exception:
            logger.exception("the router does not learn any more of what this worker can reuse")
        finally:
            socket.close()
            context.term()
