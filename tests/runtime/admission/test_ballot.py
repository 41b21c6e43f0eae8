"""One vote of each rank: in any order, once, on the round that is open."""

from __future__ import annotations

from itertools import permutations

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.admission.ballot import Ballot
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote


def vote(rank: int, round_id: int = 7) -> Vote:
    return Vote(round_id=round_id, rank=rank, endpoints=(rank,))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_tally_comes_with_the_last_vote_in_rank_order(order: tuple[int, ...]) -> None:
    ballot = Ballot(Plan(round_id=7), ranks=3)
    *early, last = order
    assert [ballot.cast(vote(rank)) for rank in early] == [None, None]
    assert ballot.cast(vote(last)) == Tally(round_id=7, votes=(vote(0), vote(1), vote(2)))


@pytest.mark.parametrize(
    ("refused", "complaint"),
    [
        (vote(1), r"rank 1 of 3 voted on round 7; round 7 is open, and ranks \[1\] have voted"),
        (vote(0, round_id=6), "rank 0 of 3 voted on round 6; round 7 is open"),
        (vote(0, round_id=8), "rank 0 of 3 voted on round 8"),
        (vote(3), "rank 3 of 3 voted"),
        (vote(-1), "rank -1 of 3 voted"),
    ],
)
def test_a_vote_that_is_not_missing_is_refused_and_not_counted(refused: Vote, complaint: str) -> None:
    ballot = Ballot(Plan(round_id=7), ranks=3)
    ballot.cast(vote(1))
    with pytest.raises(PositionMismatch, match=complaint):
        ballot.cast(refused)
    assert ballot.cast(vote(0)) is None, "what was refused is not among the votes"
    assert ballot.cast(vote(2)) == Tally(round_id=7, votes=(vote(0), vote(1), vote(2)))


def test_whose_vote_is_missing_is_known_at_any_time() -> None:
    ballot = Ballot(Plan(round_id=7), ranks=3)
    assert ballot.missing == (0, 1, 2)
    ballot.cast(vote(1))
    assert ballot.missing == (0, 2)
