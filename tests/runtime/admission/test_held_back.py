"""Who waits for others who want the same; prompts of letters, a block each."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.runtime.admission.demand import Demand
from wavepp_worker.runtime.admission.held_back import KNOWN_PAIRS, Alike, Gathering, released
from wavepp_worker.runtime.admission.order import arrange
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
    return Gathering(said, Alike.of([]), running, tokens, 0, 4, enough, few)


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


def test_the_leading_groups_that_are_opened_go_and_who_is_not_held_back() -> None:
    first, same, second, stranger = (
        waiting(number, group) for number, group in ((1, 1), (2, 1), (3, 3), (4, 4))
    )
    arranged, held_back = [first, same, second, stranger], [first, same, second]

    def who(few: float) -> list[Waiting]:
        likely = Said(likely=1, lacking=1000)
        return released(arranged, held_back, gathering(likely, running=1, tokens=0, few=few), 100)

    assert who(few=0) == [stranger]
    assert who(few=1) == [first, same, stranger]
    nobody_joins = gathering(Said(lacking=1000), running=1, tokens=53)
    assert released(arranged, held_back, nobody_joins, 100) == arranged, (
        "53 tokens, 4 each and 64 that are enough"
    )
    nobody_joins = gathering(Said(lacking=1000), running=1, tokens=56)
    assert released(arranged, held_back, nobody_joins, 100) == [first, same, stranger]


def test_no_group_after_one_that_waits_is_opened() -> None:
    first, second = waiting(1, 1), waiting(2, 2)

    class OnlySecond(Said):
        def missing(self, entry: Waiting) -> int:
            return 1000 if entry is first else 0

    assert released([first, second], [first, second], gathering(OnlySecond(likely=1), 1, 0), 100) == []


def test_who_may_pass_nobody_any_more_is_not_passed_by_a_lower_priority() -> None:
    """Of 10 tokens that may pass the one held back the first takes 4: 8 do not fit, and 2 would."""
    held, ready, urgent, low = (waiting(number, 1) for number in (1, 2, 3, 4))
    ready.prompt_tokens, low.prompt_tokens = 8, 2
    held.priority, urgent.priority, ready.priority = 2, 1, 1
    arranged = [held, urgent, ready, low]
    few_run = gathering(Said(likely=1, lacking=1000), running=1, tokens=0)
    assert released(arranged, [held], few_run, 10) == [urgent]
    low.priority = 1
    few_run = gathering(Said(likely=1, lacking=1000), running=1, tokens=0)
    assert released(arranged, [held], few_run, 10) == [urgent, low], "of one priority the shorter may"


DRAWN = st.tuples(
    st.integers(1, 30),
    st.integers(0, 20),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 1),
    st.floats(0, 30),
)
"""Tokens, those that passed it, its group, whether it is held back, its priority, tokens that it computes."""


@given(st.lists(DRAWN, max_size=12), st.integers(0, 120), st.integers(0, 100), st.integers(0, 3))
def test_nobody_is_passed_by_more_than_the_bound(
    drawn: list[tuple[int, int, int, bool, int, float]], bound: int, lacking: int, few: int
) -> None:
    entries = [
        Waiting(
            0.0, tokens, number, keys("abcd"), 4, priority, passed=min(passed, bound),
            demand=Demand(takes=computes, computes=computes, shared=0, alone=4, present=0, group=group),
        )
        for number, (tokens, passed, group, _, priority, computes) in enumerate(drawn)
    ]  # fmt: skip
    arranged: list[Waiting] = []
    for priority in (1, 0):
        those = [each for each in entries if each.priority == priority]
        demands = [each.demand for each in those if each.demand is not None]
        arranged += arrange(those, demands, bound)
    held_back = [each for each, (*_, held, _, _) in zip(entries, drawn, strict=True) if held]
    chosen = released(arranged, held_back, gathering(Said(lacking=lacking, likely=1), 2, 0, few=few), bound)
    for each in entries:
        passing = chosen[: chosen.index(each)] if each in chosen else chosen
        by = sum(other.prompt_tokens for other in passing if other.first_come > each.first_come)
        assert each.passed + by <= max(bound, each.passed), (each.number, [other.number for other in chosen])
        ready = each not in held_back and each not in chosen
        assert not ready or all(other.priority >= each.priority for other in passing)
