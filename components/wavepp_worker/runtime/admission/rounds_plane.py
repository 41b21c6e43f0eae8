"""The rounds plane: rank 0 broadcasts a plan, all ranks gather votes, every rank sees every vote."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.protocol.codec import Codec
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
            timeout: seconds a vote may take.
            delay: seconds to add to every round between voting and counting, as a slower network would.
        """
        self._timeout = timeout
        self._delay = delay
        self._sockets = []
        for address in addresses:
            socket = context.socket(zmq.PAIR)
            socket.bind(address)
            self._sockets.append(socket)

    def run(self, plan: Plan, vote: Callable[[Plan], Vote]) -> tuple[Vote, ...]:
        """One round: broadcast ``plan``, vote oneself meanwhile, gather, and send everybody the tally.

        Returns:
            All votes in rank order.

        Raises:
            EngineDead: a follower did not vote in time.
            PositionMismatch: a follower voted on another round.
        """
        message = encode(plan)
        for socket in self._sockets:
            socket.send(message)
        votes = [vote(plan)]
        time.sleep(self._delay)
        for rank, socket in enumerate(self._sockets, start=1):
            answer = _receive(socket, self._timeout, f"rank {rank}'s vote on round {plan.round_id}")
            if not isinstance(answer, Vote) or answer.round_id != plan.round_id or answer.rank != rank:
                raise PositionMismatch(f"expected rank {rank}'s vote on round {plan.round_id}, got {answer}")
            votes.append(answer)
        tally = encode(Tally(round_id=plan.round_id, votes=tuple(votes)))
        for socket in self._sockets:
            socket.send(tally)
        return tuple(votes)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=500)


class FollowerRounds:
    """Another rank's end."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, timeout: float) -> None:
        self._timeout = timeout
        self._next_round = 0
        self._socket = context.socket(zmq.PAIR)
        self._socket.connect(address)

    def next_plan(self, timeout: float) -> Plan | None:
        """The next plan, or None if none came within ``timeout`` seconds.

        Raises:
            PositionMismatch: the plan is not that of the next round.
        """
        if not self._socket.poll(int(timeout * 1000)):
            return None
        plan = _receive(self._socket, self._timeout, f"the plan of round {self._next_round}")
        if not isinstance(plan, Plan) or plan.round_id != self._next_round:
            raise PositionMismatch(f"expected the plan of round {self._next_round}, got {plan}")
        self._next_round += 1
        return plan

    def exchange(self, vote: Vote) -> tuple[Vote, ...]:
        """Send this rank's vote and return everybody's, in rank order.

        Raises:
            EngineDead: rank 0 did not send the tally in time.
            PositionMismatch: the tally is of another round.
        """
        self._socket.send(encode(vote))
        tally = _receive(self._socket, self._timeout, f"the tally of round {vote.round_id}")
        if not isinstance(tally, Tally) or tally.round_id != vote.round_id:
            raise PositionMismatch(f"expected the tally of round {vote.round_id}, got {tally}")
        return tally.votes

    def close(self) -> None:
        self._socket.close(linger=500)


def _receive(socket: zmq.Socket[bytes], timeout: float, what: str) -> RoundMessage:
    if not socket.poll(int(timeout * 1000)):
        raise EngineDead(f"{what} did not arrive within {timeout:.0f} s")
    return Codec.round.decode(socket.recv())
