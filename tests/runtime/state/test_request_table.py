"""A rank's requests, and whether a schedule fits where they stand."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.requests import Arrival, PrefillRequest
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.request_table import RequestTable, check_span


def arrival(name: str, tokens: int) -> Arrival:
    return Arrival(request_id=name, prompt_tokens=tokens, keys=b"")


def table_with(name: str, tokens: int, endpoint: int) -> RequestTable:
    table = RequestTable()
    table.announce(arrival(name, tokens))
    table.known(name).position = endpoint
    table.admit(name, endpoint)
    return table


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        (Span("r", 8, 4, False), "request r is scheduled at token 8, but this rank stands at token 16"),
        (Span("r", 16, 20, True), "its prompt has 32"),
        (Span("r", 16, 16, False), "its prompt has 32"),
        (Span("r", 16, 0, False), "its prompt has 32"),
    ],
)
def test_a_follower_refuses_a_schedule_that_does_not_fit_its_state(span: Span, complaint: str) -> None:
    """S12, promise 12: it names the request and both positions instead of running on."""
    with pytest.raises(PositionMismatch, match=complaint):
        check_span(table_with("r", tokens=32, endpoint=16).known("r"), span)


def test_a_request_is_committed_once_all_ranks_are_known_to_hold_it() -> None:
    table = RequestTable()
    assert not table.admitted("late")
    table.announce(arrival("late", 4))
    assert not table.admitted("late")
    table.admit("late", 0)
    assert table.admitted("late")
    table.forget("late")
    assert not table.admitted("late")


def test_a_round_that_names_an_unknown_request_is_refused() -> None:
    with pytest.raises(PositionMismatch, match="request x, which this rank does not know"):
        RequestTable().known("x")


def test_a_request_is_announced_once() -> None:
    table = table_with("r", tokens=8, endpoint=0)
    with pytest.raises(ValueError, match="announced twice"):
        table.announce(arrival("r", 8))


def test_rank_0_keeps_all_of_a_request_from_its_submission_until_it_is_forgotten() -> None:
    table, request = RequestTable(), PrefillRequest.of("r", [1, 2, 3])
    table.submitted(request)
    assert (len(table), table.ids()) == (0, ("r",))
    table.announce(arrival("r", 3))
    assert table.known("r").whole is request
    assert table.ids() == ("r",)
    table.forget("r")
    assert table.ids() == ()


def test_a_request_that_is_let_go_of_before_it_was_announced_leaves_nothing() -> None:
    table = RequestTable()
    table.submitted(PrefillRequest.of("r", [1, 2, 3]))
    table.forget("r")
    assert table.ids() == ()


def test_why_a_rank_has_nothing_to_compute() -> None:
    table = RequestTable()
    assert table.waits_for() == "no_requests"
    table.announce(arrival("waits", 8))
    assert table.waits_for() == "admission"
    table.announce(arrival("runs", 8))
    table.admit("runs", 0)
    assert table.waits_for() == "upstream"
    table.known("runs").executed = True
    assert table.waits_for() == "admission", "what is handed off has nothing to compute any more"
