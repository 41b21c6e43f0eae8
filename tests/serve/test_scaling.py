"""From the planner's numbers to replicas that are started and stopped."""

from __future__ import annotations

import pytest
from wavepp_worker.serve.scaling import Bounds, Decision, Steps, steps_to, within_bounds

BOUNDS = {"prefill": Bounds(1, 4), "decode": Bounds(2, 3)}
NAMES = {"prefill": "PrefillWorker", "decode": "DecodeWorker"}


def test_what_is_within_bounds_stays_as_it_is() -> None:
    assert within_bounds(Decision(0, {"prefill": 4, "decode": 2}), BOUNDS, NAMES) == (
        {"prefill": 4, "decode": 2},
        [],
    )


def test_numbers_beyond_a_bound_become_it_and_are_told() -> None:
    wanted, sentences = within_bounds(Decision(0, {"prefill": 9, "decode": 0}), BOUNDS, NAMES)
    assert wanted == {"prefill": 4, "decode": 2}
    assert sentences == [
        "9 of PrefillWorker are asked for, and PrefillWorker.ServiceArgs.max_workers is 4: there are 4; give the "
        "planner the same bound, which waits for what it has asked for",
        "0 of DecodeWorker are asked for, and DecodeWorker.ServiceArgs.min_workers is 2: there are 2; give the "
        "planner the same bound, which waits for what it has asked for",
    ]


def test_roles_that_a_decision_does_not_name_or_others_have_are_left_alone() -> None:
    only_prefill = {"prefill": Bounds(1, 4)}
    assert within_bounds(Decision(0, {"decode": 9}), only_prefill, NAMES) == ({}, [])
    assert steps_to({}, {"prefill": [0, 1]}) == Steps()


@pytest.mark.parametrize(
    ("wanted", "there", "start", "stop"),
    [
        (1, [0], [], []),
        (3, [0], [1, 2], []),
        (1, [0, 1, 2], [], [2, 1]),
        # A replica that was given up leaves a gap, which is filled first.
        (3, [0, 2], [1], []),
        (2, [0, 2], [1], [2]),
        (0, [1, 0], [], [1, 0]),
    ],
)
def test_the_highest_numbers_leave_and_the_lowest_come(
    wanted: int, there: list[int], start: list[int], stop: list[int]
) -> None:
    steps = steps_to({"prefill": wanted}, {"prefill": there})
    assert [number for _, number in steps.start] == start
    assert [number for _, number in steps.stop] == stop


def test_services_change_at_once() -> None:
    steps = steps_to({"prefill": 1, "decode": 2}, {"prefill": [0, 1], "decode": [0]})
    assert steps == Steps(start=(("decode", 1),), stop=(("prefill", 1),))
