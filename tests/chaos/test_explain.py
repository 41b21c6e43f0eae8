"""Errors that a fault explains, and those that none does; when a graph answered again."""

from __future__ import annotations

import pytest

from tests.chaos.explain import AFTERMATH_SECONDS, Health, recovery, unexplained
from tests.chaos.faults import Fault, Injected, Kind, Role
from tests.chaos.judge import Reply, Verdict


def hit(role: Role, began: float, ended: float, victim: str = "somebody") -> Injected:
    return Injected(Fault(began, Kind.STOP, role, 0.0, ended - began), began, ended, victim)


def error(began: float, ended: float) -> tuple[Reply, Verdict]:
    return Reply(0, began, ended, status=500, error="oh"), Verdict.ERROR


def broken(began: float, ended: float) -> tuple[Reply, Verdict]:
    return Reply(0, began, ended, broken="ReadError"), Verdict.BROKEN


WELL = [Health(0.5 * step) for step in range(200)]


@pytest.mark.parametrize(
    ("began", "ended", "explained"),
    [(1, 9.9, False), (1, 10, True), (12, 13, True), (20 + AFTERMATH_SECONDS, 70, True), (40, 50, False)],
)
def test_an_error_is_explained_by_a_fault_in_its_life_or_just_before(
    began: float, ended: float, explained: bool
) -> None:
    found = unexplained([error(began, ended)], [hit(Role.RANK, 10, 20)], WELL)
    assert (found == []) is explained


def test_what_is_told_to_stop_has_left_before_it_ends() -> None:
    told = Injected(Fault(10, Kind.TERMINATE, Role.PREFILL, 0.0), 10, 10, "somebody")
    assert not unexplained([error(50, 51)], [told], WELL)
    assert unexplained([error(54, 55)], [told], WELL)


def test_a_fault_that_hit_nobody_explains_nothing() -> None:
    assert unexplained([error(12, 13)], [hit(Role.RANK, 10, 20, victim="")], WELL)


def test_a_process_that_is_not_back_explains_errors_until_it_is() -> None:
    down = [Health(1.0, [Role.DECODE]), Health(2.0, [Role.DECODE])]
    health = [Health(0.0), Health(0.6), *down, Health(3.0), Health(99.0)]
    assert unexplained([error(0.1, 0.5)], [], health)
    # It may have been down since just after the look before.
    assert not unexplained([error(0.8, 0.9)], [], health)
    assert not unexplained([error(2.5, 2.6), error(14, 15)], [], health)
    assert unexplained([error(15.5, 16)], [], health)


def test_only_a_hurt_frontend_explains_a_broken_connection() -> None:
    assert unexplained([broken(12, 13)], [hit(Role.RANK, 10, 20)], WELL)
    assert not unexplained([broken(12, 13)], [hit(Role.FRONTEND, 10, 20)], WELL)
    down = [Health(0.0), Health(1.0, [Role.FRONTEND]), Health(2.0)]
    assert not unexplained([broken(1.5, 1.6)], [], down)


def test_what_is_not_an_error_needs_no_explanation() -> None:
    assert not unexplained([(Reply(0, 1.0, 2.0, status=200), Verdict.RIGHT)], [], WELL)


def test_recovery_counts_answers_to_what_was_asked_after_the_fault() -> None:
    fault = hit(Role.RANK, 10, 12)
    right = [(Reply(0, began, ended), Verdict.RIGHT) for began, ended in ((9, 11), (16, 17), (14, 15))]
    assert recovery(fault, [*right, error(11, 12)]) == 5
    assert recovery(fault, [error(11, 12)]) is None
