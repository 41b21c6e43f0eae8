"""The books of one held request, with a made-up clock."""

from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.prefill.held_kv import HeldKv


def held_kv(ready: int = 0) -> HeldKv:
    """100 tokens, held since second 0."""
    return HeldKv("a", torch.arange(8), 100, ready, progress=0)


def test_nobody_ever_connects() -> None:
    held = held_kv()
    assert not held.overdue(since=-0.1)
    assert held.overdue(since=0)


def test_a_running_prefill_is_progress_while_nobody_is_connected() -> None:
    """Without bootstrap, decode connects only after the prefill."""
    held = held_kv()
    for now in range(5, 50, 5):
        held.computed(now, now=now)
    assert not held.overdue(since=44)
    assert held.overdue(since=45)


def test_a_stalled_first_chunk_does_not_hide_behind_the_prefill() -> None:
    """S41: the limit counts from the first byte that does not move, not from the last chunk."""
    held = held_kv()
    held.start_pull()
    held.computed(20, now=2)
    for now in range(4, 12):
        held.computed(20 + now, now=now)
    assert not held.overdue(since=1.9)
    assert held.overdue(since=2)


def test_a_slow_prefill_does_not_expire_a_receiver_that_keeps_up() -> None:
    held = held_kv()
    held.start_pull()
    for now in range(9, 90, 9):
        held.computed(now, now=now)
        held.delivered(now, now=now)
    assert not held.overdue(since=80)
    assert held.overdue(since=81)


def test_bytes_that_move_are_progress() -> None:
    held = held_kv(ready=50)
    held.start_pull()
    held.moved(now=7)
    assert held.sent == 0
    assert not held.overdue(since=6.9)
    assert held.overdue(since=7)


def test_reconnecting_is_not_progress_and_starts_over() -> None:
    held = held_kv(ready=50)
    for _ in range(5):
        held.start_pull()
        held.sent = 30
        held.stop_pull()
    held.start_pull()
    assert held.sent == 0
    assert held.overdue(since=0)


def test_computing_again_what_is_ready_is_not_progress_and_the_prompt_is_the_limit() -> None:
    held = held_kv(ready=50)
    held.computed(50, now=5)
    held.computed(20, now=6)
    assert (held.ready, held.progress) == (50, 0)
    held.computed(101, now=7)
    assert (held.ready, held.progress) == (100, 7)


def test_free_only_when_it_ends_and_nobody_reads() -> None:
    held = held_kv(ready=50)
    assert not held.free
    held.begin_read()
    held.begin_read()
    held.end("withdrawn")
    held.end("received")
    assert held.ending == "withdrawn"
    assert not held.overdue(since=99)
    with pytest.raises(HandoffError, match="a is withdrawn; its KV must not be read any more"):
        held.begin_read()
    held.end_read()
    assert not held.free
    held.end_read()
    assert held.free


def test_impossible_books() -> None:
    for wrong in ({"sent": 11}, {"sent": -1}, {"ready": 101}, {"readers": -1}, {"ending": "failed"}):
        held = held_kv(ready=10)
        assert held.possible
        for name, value in wrong.items():
            setattr(held, name, value)
        assert not held.possible, wrong
