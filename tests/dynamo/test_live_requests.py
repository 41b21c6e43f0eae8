from __future__ import annotations

import pytest
from wavepp_worker.dynamo.live_requests import LiveRequests
from wavepp_worker.dynamo.request_log import TraceIds
from wavepp_worker.errors import InvalidRequest


def test_an_id_is_one_requests_until_that_is_over() -> None:
    live = LiveRequests()
    with live.entered("r", lambda: False):
        with pytest.raises(InvalidRequest, match="request id r is in use"), live.entered("r", lambda: True):
            pass
        assert not live.given_up("r"), "the caller of the other one did"
        with live.entered("s", lambda: True):
            assert live.given_up("s")
    live.check_free("r")
    with pytest.raises(ZeroDivisionError), live.entered("r", lambda: True):
        _ = 1 // 0
    live.check_free("r")
    assert not live.given_up("r")


def test_a_live_requests_trace_is_found_by_any_of_its_ids() -> None:
    live, ids = LiveRequests(), TraceIds("aa", "bb")
    with live.entered("r-1", lambda: False, ids):
        assert live.trace_of("r-1") == ("r-1", ids)
        assert live.trace_of("r-1-2") == ("r-1", ids), "an attempt, or the request among the ranks"
        assert live.trace_of("r") is None
    assert live.trace_of("r-1") is None
