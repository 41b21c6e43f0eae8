"""How long a worker that is told to stop waits for its requests."""

from __future__ import annotations

import asyncio

import pytest
from wavepp_worker.dynamo import stop_order
from wavepp_worker.dynamo.stop_order import StopOrder
from wavepp_worker.liveness.stop_times import stop_variables


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which goes on by a second with each look at the requests; they have 25 s."""
    clock = [1000.0]
    monkeypatch.setattr(stop_order.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stop_order, "POLL_SECONDS", 0.0)
    for name, value in stop_variables(25, {}).items():
        monkeypatch.setenv(name, value)
    return clock


def looks(order: StopOrder, now: list[float], *, until_quiet: int) -> int:
    """How often ``wait`` looked at requests that end after so many looks."""
    looked = 0

    async def is_quiescent() -> bool:
        nonlocal looked
        looked += 1
        now[0] += 1.0
        return looked > until_quiet

    asyncio.run(order.wait(is_quiescent))
    return looked


def test_without_an_order_nobody_is_waited_for(now: list[float]) -> None:
    order = StopOrder()
    assert looks(order, now, until_quiet=5) == 0
    assert not order.given
    assert order.reason is None


def test_requests_are_waited_for_until_they_have_ended(now: list[float]) -> None:
    order = StopOrder()
    order.give()
    assert order.given
    assert order.reason is None
    assert looks(order, now, until_quiet=5) == 6
    assert order.reason is not None, "for whoever asks now"


def test_their_time_is_bounded_and_runs_from_the_first_order(
    now: list[float], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    order = StopOrder()
    order.give()
    now[0] += 10.0
    order.give()
    assert capsys.readouterr().err == "LEAVING: told to stop; requests have 25 s to end\n"
    assert looks(order, now, until_quiet=1000) == 15
    assert "the worker was told to stop, and its requests had 25 s to end" in caplog.text
