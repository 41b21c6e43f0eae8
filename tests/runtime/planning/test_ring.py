"""The waves in flight: bounded, completed in order."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.waves import Span


def test_the_ring_is_bounded_ordered_and_knows_what_it_carries() -> None:
    ring = Ring(2)
    first = ring.launch((Span("a", 0, 4, False),))
    second = ring.launch((Span("a", 4, 4, True), Span("b", 0, 1, True)))
    assert ring.full
    with pytest.raises(ValueError, match="2 waves are in flight"):
        ring.launch((Span("c", 0, 1, True),))
    with pytest.raises(PositionMismatch, match="oldest wave in flight is 0"):
        ring.complete(second)
    ring.complete(first)
    assert ring.carries("a")
    assert ring.carries("b")
    ring.complete(second)
    assert not ring.carries("a")
    ring.check()


def test_a_ring_whose_counts_are_wrong_says_so() -> None:
    ring = Ring(2)
    ring.launch((Span("a", 0, 4, True),))
    for wrong in (1, 0):
        ring._in_flight["b"] = wrong
        with pytest.raises(ValueError, match="the ring counts"):
            ring.check()


def test_the_waves_that_carry_a_request_have_a_place_and_an_id() -> None:
    ring = Ring(4)
    for start in range(3):
        ring.launch((Span("b" if start == 1 else "a", start, 1, False),))
    ring.complete(0)
    ring.launch((Span("a", 3, 1, False), Span("b", 3, 1, False)))
    assert ring.carrying("a") == [(2, 2), (3, 3)]
    assert ring.carrying("b") == [(1, 1), (3, 3)]
    assert ring.carrying("c") == []
