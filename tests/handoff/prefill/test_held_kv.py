"""The books of one held request, with a made-up clock."""

from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.prefill.held_kv import HeldKv

LIMIT = 10.0


def held_kv(ready: int = 0) -> HeldKv:
    """100 tokens, held since second 0."""
    return HeldKv("a", torch.arange(8), 100, ready, heard=0)


def test_nobody_comes_for_what_is_ready() -> None:
    held = held_kv(ready=100)
    assert not held.overdue(9.9, LIMIT)
    assert held.overdue(10, LIMIT)


def test_time_does_not_count_before_the_kv_is_ready() -> None:
    """It may wait in a lane for long; without bootstrap, decode connects only after the prefill."""
    held = held_kv(ready=50)
    assert not held.overdue(1000, LIMIT)
    held.computed(99, now=1000)
    assert not held.overdue(2000, LIMIT)
    held.computed(100, now=2000)
    assert not held.overdue(2009.9, LIMIT)
    assert held.overdue(2010, LIMIT)


def test_a_living_receiver_is_never_timed_out_however_long_it_has_to_wait() -> None:
    held = held_kv(ready=50)
    held.start_pull(now=100, wait=10_000)
    held.delivered(50, now=101)
    for now in range(105, 5000, 9):
        assert not held.overdue(now, LIMIT)
        held.asked(now)
    held.computed(100, now=5000)
    assert not held.overdue(5001, LIMIT)


def test_a_receiver_that_goes_silent_is_noticed_in_every_state() -> None:
    """S41: the limit counts from its last word, not from the last chunk."""
    for ready, computed in ((0, 0), (50, 0), (50, 60), (50, 100), (100, 100)):
        held = held_kv(ready)
        held.start_pull(now=2, wait=1000)
        for now in range(3, 12):
            held.computed(min(computed, 50 + now), now=now)
        held.computed(computed, now=11.9)
        assert not held.overdue(11.9, LIMIT), (ready, computed)
        assert held.overdue(12, LIMIT), (ready, computed)


def test_a_receiver_that_went_leaves_time_to_come_back_once_it_is_ready() -> None:
    held = held_kv(ready=100)
    held.start_pull(now=5, wait=1000)
    held.stop_pull(now=8)
    assert not held.overdue(17.9, LIMIT)
    assert held.overdue(18, LIMIT)
    unready = held_kv(ready=50)
    unready.start_pull(now=5, wait=1000)
    unready.stop_pull(now=8)
    assert not unready.overdue(500, LIMIT)


def test_bytes_that_move_are_a_sign_of_life() -> None:
    held = held_kv(ready=50)
    held.start_pull(now=0, wait=1000)
    held.asked(now=7)
    assert held.sent == 0
    assert not held.overdue(16.9, LIMIT)
    assert held.overdue(17, LIMIT)


def test_nobody_can_reconnect_for_ever_and_each_starts_over() -> None:
    """A receiver says how long it waits for all of it; no later one gets more."""
    held = held_kv(ready=50)
    for now in range(0, 40, 5):
        held.start_pull(now=now, wait=40)
        held.sent = 30
        held.stop_pull(now=now + 1)
    held.start_pull(now=39, wait=40)
    assert held.sent == 0
    assert not held.overdue(39.9, LIMIT)
    assert held.overdue(40, LIMIT)


def test_computing_again_what_is_ready_is_no_news_and_the_prompt_is_the_limit() -> None:
    held = held_kv(ready=50)
    held.computed(50, now=5)
    held.computed(20, now=6)
    assert (held.ready, held.heard) == (50, 0)
    held.computed(101, now=7)
    assert (held.ready, held.heard) == (100, 7)


def test_free_only_when_it_ends_and_nobody_reads() -> None:
    held = held_kv(ready=50)
    assert not held.free
    held.begin_read()
    held.begin_read()
    held.end("withdrawn")
    held.end("received")
    assert held.ending == "withdrawn"
    assert not held.overdue(99, LIMIT)
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
