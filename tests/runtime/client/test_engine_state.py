from __future__ import annotations

import threading

import pytest
from wavepp_worker.errors import RequestAborted
from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.protocol.requests import PrefillRequest


class CountingLock:
    """How often it was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_is_withdrawn_is_found_and_aborted_at_once() -> None:
    """In between, its name could become another request's, which would be aborted for it."""
    state = EngineState(1, None)
    live = state.ledger.accept(PrefillRequest.of("name", [1, 2]), 0.0, 100.0, None)
    state.lock = lock = CountingLock()  # type: ignore[assignment]
    state.withdraw("nobody's", RequestAborted)
    state.withdraw(live.request.request_id, RequestAborted)
    assert lock.taken == 2
    with pytest.raises(RequestAborted, match="name"):
        live.future.result(0)
    state.withdraw(live.request.request_id, RequestAborted)
