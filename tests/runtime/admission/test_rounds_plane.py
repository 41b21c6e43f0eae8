"""The rounds plane over real sockets: what rank 0 says reaches every rank, and every vote is the one that was due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.protocol.commands import Audit, Clear, Stop
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.requests import Arrival
from wavepp_worker.runtime.protocol.rounds import Admit, Claim, Plan, Tally, Vote

FOLLOWERS = 2
SOON = 10.0
"""Seconds within which a message between two sockets of this process arrives."""

Plane = tuple[LeaderRounds, list[FollowerRounds]]


@pytest.fixture(params=["inproc", "ipc"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Plane]]:
    """Call with ``LeaderRounds``' settings for rank 0's end and the other ranks', connected."""
    made: list[LeaderRounds | FollowerRounds] = []
    place = tmp_path if request.param == "ipc" else ""
    addresses = [f"{request.param}://{place}/rounds{rank}" for rank in range(1, FOLLOWERS + 1)]
    with zmq.Context() as context:

        def connected(timeout: float = SOON, delay: float = 0.0) -> Plane:
            leader = LeaderRounds(context, addresses, timeout, delay)
            followers = [FollowerRounds(context, address) for address in addresses]
            made.extend([leader, *followers])
            return leader, followers

        yield connected
        for end in made:
            end.close()


def vote(rank: int, round_id: int = 3) -> Vote:
    return Vote(round_id=round_id, rank=rank, endpoints=(16 * rank,), claims=(Claim(16, committed=True),))


def test_plans_and_tallies_reach_every_rank_in_order(connect: Callable[..., Plane]) -> None:
    leader, followers = connect()
    request = Arrival(request_id="a", prompt_tokens=3, keys=bytes(range(16)), handoff=True)
    plan = Plan(
        round_id=3,
        arrivals=(request,),
        prepare=(Admit("a", 0),),
        tasks=(Audit(audit_id=0), Clear(clear_id=1)),
    )
    tally = Tally(round_id=3, votes=(vote(0), vote(1), vote(2)))
    leader.broadcast(plan)
    leader.broadcast(tally)
    for follower in followers:
        assert follower.receive(SOON) == plan
        assert follower.receive(SOON) == tally
        assert follower.receive(0.0) is None


def test_votes_come_in_rank_order_whoever_was_first(connect: Callable[..., Plane]) -> None:
    leader, followers = connect()
    followers[1].send(vote(2))
    votes = leader.votes(3)
    followers[0].send(vote(1))
    assert list(votes) == [vote(1), vote(2)]


def test_nothing_to_receive_takes_as_long_as_asked_and_no_longer(connect: Callable[..., Plane]) -> None:
    _, followers = connect()
    begun = time.monotonic()
    assert followers[0].receive(0.05) is None
    assert 0.04 <= time.monotonic() - begun < SOON
    assert followers[0].receive(-1.0) is None, "what was due already is looked at, and not waited for"


def test_a_rank_that_does_not_vote_is_named(connect: Callable[..., Plane]) -> None:
    leader, followers = connect(timeout=0.05)
    followers[0].send(vote(1))
    votes = leader.votes(3)
    assert next(votes) == vote(1)
    with pytest.raises(EngineDead, match="rank 2's vote on round 3 did not arrive"):
        next(votes)


def test_a_rank_that_is_not_there_is_named_and_not_waited_for_in_vain(connect: Callable[..., Plane]) -> None:
    """Promise 18: it died since the last round."""
    leader, followers = connect(timeout=0.05)
    leader.broadcast(Plan(round_id=2))
    for follower in followers:
        assert follower.receive(SOON) == Plan(round_id=2)
    followers[1].close()

    def lead_on() -> None:
        # More than both sides' queues hold, should the socket's end be noticed late.
        for round_id in range(3, 5000):
            leader.broadcast(Plan(round_id=round_id))
            assert followers[0].receive(SOON) == Plan(round_id=round_id)

    with pytest.raises(EngineDead, match=r"rank 2 takes no message of round \d+: it was not connected"):
        lead_on()


@pytest.mark.parametrize("answer", [vote(2), Plan(round_id=3), Tally(round_id=3, votes=())])
def test_what_is_no_vote_of_the_rank_itself_is_refused(
    connect: Callable[..., Plane], answer: Plan | Vote | Tally
) -> None:
    leader, followers = connect()
    followers[0].send(answer)  # type: ignore[arg-type]
    with pytest.raises(PositionMismatch, match="expected rank 1's vote on round 3, got"):
        next(leader.votes(3))


def test_a_message_of_another_plane_is_refused(connect: Callable[..., Plane]) -> None:
    leader, followers = connect()
    leader.broadcast(Stop())  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match="Stop"):
        followers[0].receive(SOON)
    assert encode(Stop()), "it is a sound message, elsewhere"


def test_a_slower_network_is_the_delay_before_votes_are_counted(connect: Callable[..., Plane]) -> None:
    leader, followers = connect(delay=0.1)
    for rank, follower in enumerate(followers, start=1):
        follower.send(vote(rank))
    begun = time.monotonic()
    assert len(list(leader.votes(3))) == FOLLOWERS
    assert time.monotonic() - begun >= 0.1
