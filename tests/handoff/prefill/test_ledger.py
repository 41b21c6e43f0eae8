"""The books of a source, with a made-up clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import AuditError, HandoffError
from wavepp_worker.handoff.prefill.ledger import Ledger

TABLE = torch.arange(8)


def test_nobody_ever_connects() -> None:
    ledger = Ledger(10)
    ledger.offer("a", TABLE, 100, 0, now=0)
    assert ledger.overdue(9.9) == []
    assert ledger.overdue(10) == ["a"]


def test_a_running_prefill_is_progress_while_nobody_is_connected() -> None:
    """Without bootstrap, decode connects only after the prefill."""
    ledger = Ledger(10)
    ledger.offer("a", TABLE, 100, 0, now=0)
    for now in range(5, 50, 5):
        ledger.advance("a", now, now=now)
    assert ledger.overdue(54) == []
    assert ledger.overdue(55) == ["a"]


def test_a_stalled_first_chunk_does_not_hide_behind_the_prefill() -> None:
    """S41: the limit counts from the first byte that does not move, not from the last chunk."""
    ledger = Ledger(10)
    held = ledger.offer("a", TABLE, 100, 0, now=0)
    ledger.start_pull(held)
    ledger.advance("a", 20, now=2)
    for now in range(4, 12):
        ledger.advance("a", 20 + now, now=now)
    assert ledger.overdue(11.9) == []
    assert ledger.overdue(12) == ["a"]


def test_a_slow_prefill_does_not_expire_a_receiver_that_keeps_up() -> None:
    ledger = Ledger(10)
    held = ledger.offer("a", TABLE, 100, 0, now=0)
    ledger.start_pull(held)
    for now in range(9, 90, 9):
        ledger.advance("a", now, now=now)
        ledger.delivered(held, now, now=now)
    assert ledger.overdue(90) == []
    assert ledger.overdue(91) == ["a"]


def test_reconnecting_is_not_progress() -> None:
    ledger = Ledger(10)
    held = ledger.offer("a", TABLE, 100, 50, now=0)
    for _ in range(5):
        ledger.start_pull(held)
        ledger.stop_pull(held)
    assert ledger.overdue(10) == ["a"]


def test_settles_once_and_only_when_nobody_reads() -> None:
    ledger = Ledger(10)
    held = ledger.offer("a", TABLE, 100, 50, now=0)
    ledger.begin_read(held)
    ledger.begin_read(held)
    assert ledger.end("a", "withdrawn") is None
    assert ledger.end("a", "received") is None
    assert ledger.overdue(99) == []
    with pytest.raises(HandoffError, match="is withdrawn; its KV must not be read any more"):
        ledger.begin_read(held)
    assert ledger.end_read(held) is None
    assert ledger.end_read(held) is held
    assert held.ending == "withdrawn"
    assert ledger.end("a", "withdrawn") is None
    assert len(ledger) == 0


def test_a_duplicate_is_refused() -> None:
    ledger = Ledger(10)
    ledger.offer("a", TABLE, 100, 0, now=0)
    with pytest.raises(HandoffError, match="request a is already offered"):
        ledger.offer("a", TABLE, 100, 0, now=0)


def test_check_finds_impossible_books() -> None:
    ledger = Ledger(10)
    held = ledger.offer("a", TABLE, 100, 10, now=0)
    ledger.check()
    held.sent = 11
    with pytest.raises(AuditError, match="wrong for requests a"):
        ledger.check()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "advance", "pull", "stop", "read", "end_read", "deliver", "end", "late"]),
        st.sampled_from("abc"),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_order_of_events_settles_everything_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    ledger, settled, offered, now = Ledger(5), [], [], 0.0

    def note(held: Any) -> None:
        if held is not None:
            assert held.readers == 0
            settled.append(held)

    for what, name, amount in steps:
        now += amount / 10
        held = ledger.get(name)
        if what == "offer" and held is None:
            offered.append(ledger.offer(name, TABLE, 12, amount, now))
        elif what == "advance":
            ledger.advance(name, amount, now)
        elif what == "late":
            for overdue in ledger.overdue(now + amount):
                note(ledger.end(overdue, "expired"))
        elif what == "end":
            note(ledger.end(name, "withdrawn"))
        elif held is not None:
            if what == "pull":
                ledger.start_pull(held)
            elif what == "stop":
                ledger.stop_pull(held)
            elif what == "read" and held.ending is None:
                ledger.begin_read(held)
            elif what == "end_read" and held.readers:
                note(ledger.end_read(held))
            elif what == "deliver":
                ledger.delivered(held, min(amount, held.ready), now)
        ledger.check()
    for held in ledger:
        note(ledger.end(held.request_id, "withdrawn"))
        while held.readers:
            note(ledger.end_read(held))
    assert len(ledger) == 0
    assert sorted(map(id, settled)) == sorted(map(id, offered))
