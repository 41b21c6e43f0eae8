from __future__ import annotations

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.sampling import SampledToken
from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.protocol.events import Admitted, Finished, HandoffSettled, Released
from wavepp_worker.runtime.protocol.requests import PrefillRequest


def test_an_id_is_free_again_only_when_the_ranks_were_told_to_let_go_of_it() -> None:
    """S38: a quick second request of the same id would be let go of in place of the first."""
    ledger = RequestLedger(ranks=2)
    request = PrefillRequest(request_id="r", tokens=b"\0" * 64, handoff=True)
    ledger.accept(request, now=0.0, deadline=9.0)
    ledger.progress(Admitted(request_id="r", endpoint=0, queued=0.0, admission=0.0), 1.0)
    assert ledger.abort("r")[0]
    for rank in range(2):
        ledger.progress(HandoffSettled(rank=rank, request_id="r", outcome="withdrawn"), 2.0)
    with pytest.raises(InvalidRequest, match="in use"):
        ledger.accept(request, now=3.0, deadline=9.0)
    ledger.progress(Released(request_id="r"), 4.0)
    ledger.accept(request, now=5.0, deadline=9.0)


def test_a_probe_is_in_no_statistics() -> None:
    ledger = RequestLedger(ranks=1)
    for number in range(2):
        name = f"canary-{number}"
        future = ledger.accept(
            PrefillRequest(request_id=name, tokens=b"\0" * 4, probe=True), now=0.0, deadline=9.0
        )
        assert ledger.unanswered() == 0
        if number:
            ledger.abort(name)
        ledger.progress(Admitted(request_id=name, endpoint=0, queued=0.0, admission=0.0), 1.0)
        follows = ledger.progress(Finished(request_id=name, first=SampledToken(1), stages=()), 2.0)
        assert follows.future is (future if not number else None)
    assert (ledger.finished, ledger.failed, ledger.prompt_tokens, ledger.reused_tokens) == (0, 0, 0, 0)
