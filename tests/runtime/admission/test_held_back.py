"""Who waits for others who want the same; prompts of letters, a block each."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.admission.demand import Demand
from wavepp_worker.runtime.admission.held_back import KNOWN_PAIRS, Alike, released
from wavepp_worker.runtime.admission.waiting import Waiting

from tests.runtime.admission.test_order import keys


def waiting(number: int, group: int) -> Waiting:
    demand = Demand(takes=4, computes=4, shared=0, alone=4, present=0, group=group)
    return Waiting(0.0, 4, number, keys("abcd"), 4, demand=demand)


def test_many_of_whom_no_two_want_the_same_say_more_than_what_is_known() -> None:
    """What is known may be of few."""
    assert Alike.of([waiting(1, 1)]).likely(0.5) == 0.5
    different = [waiting(number, number) for number in range(40)]
    assert Alike.of(different).likely(0.5) == pytest.approx(0.5 * KNOWN_PAIRS / (40 * 39 / 2 + KNOWN_PAIRS))
    alike = [waiting(number, number % 2) for number in range(40)]
    assert Alike.of(alike).likely(0.5) == pytest.approx(0.5, abs=0.02)
    assert Alike.of(alike).likely(0.01) == pytest.approx(0.49, abs=0.03)


def test_the_leading_groups_that_are_opened_go_and_all_after_the_first_that_is_not_wait() -> None:
    first, same, second, stranger = waiting(1, 1), waiting(2, 1), waiting(3, 3), waiting(4, 4)
    arranged, held_back = [first, same, second, stranger], [first, same, second]
    asked: list[tuple[Waiting, list[Waiting]]] = []

    def up_to(most: int) -> list[Waiting]:
        asked.clear()

        def opens(entry: Waiting, before: object) -> bool:
            asked.append((entry, [*before]))  # type: ignore[call-overload]
            return len(asked) <= most

        return released(arranged, held_back, [], opens)

    assert up_to(0) == []
    assert asked == [(first, [])]
    assert up_to(1) == [first, same]
    assert asked == [(first, []), (second, [first, same])], (
        "each group is asked about once, and none after one that waits"
    )
    assert up_to(2) == arranged


def test_who_was_passed_by_too_much_does_not_wait_but_passes_nobody() -> None:
    young, old = waiting(5, 5), waiting(1, 1)
    assert released([young, old], [young], [old], lambda *_: False) == [old]
    assert released([old, young], [old], [young], lambda *_: False) == []
