"""Who waits for others who want the same; prompts of letters, a block each."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from wavepp_worker.runtime.admission.demand import Demand
from wavepp_worker.runtime.admission.held_back import KNOWN_PAIRS, Alike, Gathering, released
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


@dataclass
class Said:
    """Prospects that are the same for all."""

    computed: int = 4
    lacking: int = 4
    likely: float = 0.0

    def computes(self, entry: Waiting) -> int:
        return self.computed

    def missing(self, entry: Waiting) -> int:
        return self.lacking

    def share(self, entry: Waiting) -> float:
        return self.likely


def gathering(said: Said, running: int, tokens: int, enough: int = 64, few: float = 0) -> Gathering:
    return Gathering(said, Alike.of([]), running, tokens, enough, few)


def test_the_first_group_is_opened_while_few_run_however_many_would_join_it() -> None:
    likely = Said(lacking=1000, likely=1)
    assert gathering(likely, running=2, tokens=0, few=2).opens(waiting(1, 1), first=True)
    assert not gathering(likely, running=2, tokens=0, few=2).opens(waiting(1, 1), first=False)
    assert not gathering(likely, running=3, tokens=0, few=2).opens(waiting(1, 1), first=True)


def test_a_group_that_few_would_join_is_opened_while_stages_idle() -> None:
    """8 run, of whom a quarter will want it: they save 4 tokens, a sixteenth of what keeps the stages busy."""
    entry, said = waiting(1, 1), Said(lacking=2, likely=1 / 4)
    assert gathering(said, running=8, tokens=63).opens(entry, first=True)
    assert not gathering(said, running=8, tokens=64).opens(entry, first=True), "no stage idles"
    assert not gathering(said, running=9, tokens=63).opens(entry, first=True)


def test_the_leading_groups_that_are_opened_go_and_others_after_them_only_while_stages_idle() -> None:
    first, same, second, stranger, another = (
        waiting(number, group) for number, group in ((1, 1), (2, 1), (3, 3), (4, 4), (5, 5))
    )
    arranged, held_back = [first, same, second, stranger, another], [first, same, second]

    def who(tokens: int, few: float) -> list[Waiting]:
        return released(arranged, held_back, [], gathering(Said(likely=1, lacking=1000), 1, tokens, few=few))

    assert who(64, few=0) == []
    assert who(56, few=0) == [stranger, another], "each computes four tokens"
    assert who(60, few=0) == [stranger]
    assert who(64, few=1) == [first, same]
    assert who(52, few=1) == [first, same, stranger]


def test_no_group_after_one_that_waits_is_opened() -> None:
    first, second = waiting(1, 1), waiting(2, 2)

    class OnlySecond(Said):
        def missing(self, entry: Waiting) -> int:
            return 1000 if entry is first else 0

    assert released([first, second], [first, second], [], gathering(OnlySecond(likely=1), 1, 0)) == []


def test_who_was_passed_by_too_much_does_not_wait_but_passes_nobody() -> None:
    young, old = waiting(5, 5), waiting(1, 1)
    busy = Said(likely=1, lacking=1000)
    assert released([young, old], [young], [old], gathering(busy, 1, 64)) == [old]
    assert released([old, young], [old], [young], gathering(busy, 1, 64)) == []


def test_who_was_passed_by_too_much_passes_no_higher_priority() -> None:
    held, low = waiting(5, 5), waiting(1, 1)
    held.priority = 1
    busy = gathering(Said(likely=1, lacking=1000), running=1, tokens=64)
    assert released([held, low], [held], [low], busy) == []
