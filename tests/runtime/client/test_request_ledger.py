from __future__ import annotations

from unittest.mock import ANY

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.protocol.events import Admitted, Finished, HandoffSettled, Released
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillRequest, RankHandedOff


def test_an_id_is_free_again_only_when_the_ranks_were_told_to_let_go_of_it() -> None:
    """S38: a quick second request of the same id would be let go of in place of the first."""
    ledger = RequestLedger(ranks=2)
    request = PrefillRequest(request_id="r", tokens=b"\0" * 64, handoff=True)
    known = ledger.accept(request, now=0.0, deadline=9.0).request.request_id
    ledger.progress(Admitted(request_id=known, endpoint=0, queued=0.0, admission=0.0), 1.0)
    assert ledger.abort("r") == (known, ANY)
    for rank in range(2):
        ledger.progress(HandoffSettled(rank=rank, request_id=known, outcome="withdrawn"), 2.0)
    with pytest.raises(InvalidRequest, match="in use"):
        ledger.accept(request, now=3.0, deadline=9.0)
    ledger.progress(Released(request_id=known), 4.0)
    ledger.accept(request, now=5.0, deadline=9.0)


def test_what_a_rank_says_late_of_an_aborted_request_is_not_of_the_next_one_of_its_id() -> None:
    """The last rank says that a prompt is done, rank 0 that it is let go of; either may be heard first."""
    ledger = RequestLedger(ranks=2)
    request = PrefillRequest(request_id="r", tokens=b"\0" * 64)
    first = ledger.accept(request, now=0.0, deadline=9.0).request.request_id
    ledger.progress(Admitted(request_id=first, endpoint=0, queued=0.0, admission=0.0), 1.0)
    ledger.abort("r")
    ledger.progress(Released(request_id=first), 2.0)
    second = ledger.accept(request, now=3.0, deadline=9.0)
    known = second.request.request_id
    assert known != first
    ledger.progress(Admitted(request_id=known, endpoint=0, queued=0.0, admission=0.0), 4.0)
    assert ledger.progress(Finished(request_id=first, first=SampledToken(7), stages=()), 5.0).answer is None
    with pytest.raises(InvalidRequest, match="in use"):
        ledger.accept(request, now=6.0, deadline=9.0)
    answer = ledger.progress(Finished(request_id=known, first=SampledToken(8), stages=()), 7.0).answer
    assert answer is not None
    assert (answer.request_id, answer.first_token) == ("r", 8)
    assert ledger.names() == []


def test_no_two_requests_are_known_by_one_id_to_the_ranks_whatever_their_callers_call_them() -> None:
    ledger = RequestLedger(ranks=1)
    names = ["a", "a-1", "a-1-1", "a-0", "-", "", "1", "a-2-1"]
    known = [
        ledger.accept(PrefillRequest(request_id=name, tokens=b"\0" * 4), 0.0, 9.0).request.request_id
        for name in names
    ]
    assert len(set(known)) == len(names)
    assert [ledger.name(each) for each in known] == names


def test_a_probe_is_in_no_statistics() -> None:
    ledger = RequestLedger(ranks=1)
    for number in range(2):
        name = f"canary-{number}"
        live = ledger.accept(
            PrefillRequest(request_id=name, tokens=b"\0" * 4, probe=True), now=0.0, deadline=9.0
        )
        known = live.request.request_id
        assert ledger.unanswered() == 0
        if number:
            ledger.abort(name)
        ledger.progress(Admitted(request_id=known, endpoint=0, queued=0.0, admission=0.0), 1.0)
        follows = ledger.progress(Finished(request_id=known, first=SampledToken(1), stages=()), 2.0)
        assert follows.future is (live.future if not number else None)
    assert (ledger.finished, ledger.failed, ledger.prompt_tokens, ledger.reused_tokens) == (0, 0, 0, 0)


def test_live_requests_are_found_by_any_of_their_names_and_by_how_long_they_wait() -> None:
    ledger = RequestLedger(ranks=1)
    for at, name in enumerate(("late", "a", "a-7", "probe")):
        request = PrefillRequest(request_id=name, tokens=b"\0" * 4, probe=name == "probe")
        ledger.accept(request, now=9.0 - at, deadline=99.0)

    def found(request_id: str) -> list[str]:
        return [live.name for live in ledger.find(request_id)]

    assert found("a") == ["a"]
    assert found("a-1") == ["a"], "as ranks and their logs have it"
    assert found("a-7-2") == ["a-7"]
    assert found("lat") == []
    ledger.abort("a")
    del ledger._live["a"]
    assert found("a") == ["a-7"], "an attempt or a job of it"
    assert [live.name for live in ledger.longest(2)] == ["a-7", "late"]
    assert [live.name for live in ledger.longest(1)] == ["a-7"]


@pytest.mark.parametrize("outcome", ["received", "expired"])
def test_when_the_last_rank_lets_go_of_an_answered_request_it_is_told_how_each_did(outcome: Settled) -> None:
    ledger = RequestLedger(ranks=2)
    request = PrefillRequest(request_id="r", tokens=b"\0" * 64, handoff=True)
    known = ledger.accept(request, now=0.0, deadline=9.0).request.request_id
    ledger.progress(Admitted(request_id=known, endpoint=0, queued=0.0, admission=0.0), 1.0)
    first = HandoffSettled(rank=1, request_id=known, outcome="received")
    assert ledger.progress(first, 2.0).handed_off is None
    ledger.progress(Finished(request_id=known, first=SampledToken(7), stages=()), 3.0)
    ended = ledger.progress(HandoffSettled(rank=0, request_id=known, outcome=outcome), 5.0).handed_off
    ranks = (RankHandedOff(1, "received", 2.0), RankHandedOff(0, outcome, 5.0))
    assert ended == HandedOff(request_id="r", answered=3.0, ranks=ranks)
    assert (ended.outcome, ended.seconds) == (outcome, 2.0)


def test_who_waits_to_be_admitted_is_counted_with_the_tokens_of_its_prompt() -> None:
    ledger = RequestLedger(ranks=1)
    known = {}
    for name, tokens, probe in (("a", 8, False), ("b", 5, False), ("c", 3, False), ("canary", 1, True)):
        request = PrefillRequest(request_id=name, tokens=b"\0" * 4 * tokens, probe=probe)
        known[name] = ledger.accept(request, now=0.0, deadline=9.0).request.request_id
    assert ledger.unadmitted() == (3, 16)
    ledger.progress(Admitted(request_id=known["a"], endpoint=0, queued=0.0, admission=0.0), 1.0)
    ledger.abort("b")
    assert ledger.unadmitted() == (1, 3)
