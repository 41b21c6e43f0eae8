"""What a round decides is a function of its plan and the votes alone."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.admission.outcome import RoundOutcome, decide
from wavepp_worker.runtime.protocol.rounds import Admit, Claim, Plan, Vote


def vote(rank: int, *claims: tuple[int, bool], hints: tuple[int, ...] = ()) -> Vote:
    return Vote(round_id=0, rank=rank, endpoints=hints, claims=tuple(Claim(*claim) for claim in claims))


def test_the_candidate_is_what_every_rank_believes_in() -> None:
    plan = Plan(round_id=0, hint=("a", "b"))
    outcome = decide(plan, [vote(0, hints=(64, 0)), vote(1, hints=(32, 16))])
    assert outcome.candidates == (Admit("a", 32), Admit("b", 0))


def test_a_request_is_admitted_where_all_ranks_committed_it() -> None:
    plan = Plan(round_id=0, prepare=(Admit("a", 32),))
    assert decide(plan, [vote(0, (32, True)), vote(1, (32, True))]).admitted == (Admit("a", 32),)


def test_different_endpoints_are_reconciled_downwards() -> None:
    """Promise 8: the richer ranks go back to what the poorest one pinned, even those that committed."""
    plan = Plan(round_id=0, prepare=(Admit("a", 48),))
    outcome = decide(plan, [vote(0, (48, True)), vote(1, (16, False)), vote(2, (32, False))])
    assert outcome == RoundOutcome(lower=(Admit("a", 16),))


def test_one_rank_without_room_makes_all_let_go_and_nobody_behind_overtakes() -> None:
    """S06, promises 8 and 9."""
    plan = Plan(round_id=0, prepare=(Admit("a", 0), Admit("b", 0), Admit("c", 0)))
    votes = [vote(0, (0, True), (0, True), (0, True)), vote(1, (0, True), (-1, False), (-1, False))]
    assert decide(plan, votes) == RoundOutcome(admitted=(Admit("a", 0),), failed=("b", "c"))


def test_a_lowered_request_whose_room_does_not_suffice_fails() -> None:
    plan = Plan(round_id=0, prepare=(Admit("new", 0),), reconcile=(Admit("a", 16),))
    outcome = decide(plan, [vote(0, (0, True), (16, True)), vote(1, (0, True), (16, False))])
    assert outcome == RoundOutcome(admitted=(Admit("new", 0),), failed=("a",))


def test_a_vote_that_does_not_answer_the_plan_stops_the_rank() -> None:
    with pytest.raises(PositionMismatch, match="rank 1 voted on 0 hints and 0 claims"):
        decide(Plan(round_id=0, prepare=(Admit("a", 0),)), [vote(0, (0, True)), vote(1)])
