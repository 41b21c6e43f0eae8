"""The rounds plane: the sockets between rank 0 and every other rank that plans, votes and tallies travel over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import zmq

from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Dump
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.rounds import Plan, RoundMessage, Tally, Vote


class LeaderRounds:
    """Rank 0's end: one socket per follower."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: list[str],
        timeout: float,
        delay: float = 0.0,
    ) -> None:
        """Bind ``addresses[i]`` for rank ``i + 1``.

        Args:
            timeout: seconds a vote may take, and a follower's connection when there is something to send.
            delay: seconds to add to every round before votes are counted, as a slower network would.
        """
        self._timeout = timeout
        self._delay = delay
        self._poller = zmq.Poller()
        self._commands: zmq.Socket[bytes] | None = None
        self._arrived: Callable[[], None] = lambda: None
        self._sockets = []
        for address in addresses:
            socket = context.socket(zmq.PAIR)
            socket.set(zmq.SNDTIMEO, int(timeout * 1000))
            socket.bind(address)
            self._sockets.append(socket)

    def broadcast(self, message: Plan | Tally | Dump) -> None:
        """Send one message to every follower; waits only for one that is not connected.

        Raises:
            EngineDead: a follower is still not connected after the timeout, or not any more.
        """
        encoded = encode(message)
        for rank, socket in enumerate(self._sockets, start=1):
            try:
                socket.send(encoded)
            except zmq.Again as error:
                what = "dump" if isinstance(message, Dump) else f"message of round {message.round_id}"
                raise EngineDead(
                    f"rank {rank} takes no {what}: it was not connected for {self._timeout:.0f} s"
                ) from error

    def meanwhile(self, commands: zmq.Socket[bytes], arrived: Callable[[], None]) -> None:
        """While a vote is waited for, have ``arrived`` take whatever comes to ``commands``."""
        self._poller.register(commands, zmq.POLLIN)
        self._commands, self._arrived = commands, arrived

    def votes(self, round_id: int) -> Iterator[Vote]:
        """One vote of each follower, in rank order, once the delay has passed.

        Raises:
            EngineDead: a follower did not vote in time.
            PositionMismatch: what a follower sent is no vote of its own.
        """
        time.sleep(self._delay)
        for rank, socket in enumerate(self._sockets, start=1):
            if not self._comes(socket):
                raise EngineDead(
                    f"rank {rank}'s vote on round {round_id} did not arrive within {self._timeout:.0f} s"
                )
            vote = Codec.round.decode(socket.recv())
            if not isinstance(vote, Vote) or vote.rank != rank:
                raise PositionMismatch(f"expected rank {rank}'s vote on round {round_id}, got {vote}")
            yield vote

    def _comes(self, vote: zmq.Socket[bytes]) -> bool:
        """Whether a vote is there within the timeout."""
        if self._commands is None:
            return bool(vote.poll(int(self._timeout * 1000)))
        due = time.monotonic() + self._timeout
        self._poller.register(vote, zmq.POLLIN)
        try:
            while True:
                arrived = dict(self._poller.poll(max(0, math.ceil(1000 * (due - time.monotonic())))))
                if self._commands in arrived:
                    self._arrived()
                if vote in arrived or time.monotonic() >= due:
                    return vote in arrived
        finally:
            self._poller.unregister(vote)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=500)


class FollowerRounds:
    """Another rank's end."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._socket.connect(address)

    def receive(self, timeout: float) -> RoundMessage | None:
        """What rank 0 sent next, or None if nothing came within ``timeout`` seconds."""
        if not self._socket.poll(max(0, round(timeout * 1000))):
            return None
        return Codec.round.decode(self._socket.recv())

    def send(self, vote: Vote) -> None:
        """Send this rank's vote; never waits."""
        self._socket.send(encode(vote))

    def close(self) -> None:
        self._socket.close(linger=500)
