"""What a worker enters before itself, look by look; seconds are given."""

from __future__ import annotations

import math

import pytest
from wavepp_worker.dynamo.adapter_order import (
    LONGEST_WAIT_SECONDS,
    MOST_SECONDS,
    SETTLE_SECONDS,
    AdapterOrder,
)
from wavepp_worker.dynamo.model_cards import BASE, CardsByWorker, WorkerCards

NAMES = ("poet", "New.One")
ALL = frozenset({BASE, "poet", "new_one"})


def has(*models: str, expires: float = math.inf) -> WorkerCards:
    return WorkerCards(frozenset(models), expires)


def first(
    others: CardsByWorker, *times: float, order: AdapterOrder | None = None
) -> tuple[float, list[str]] | None:
    """When, of these times, it is known what to enter, and what that is."""
    order = order or AdapterOrder(NAMES, 0.0)
    for now in times:
        if (names := order.to_enter(others, now)) is not None:
            return now, names
    return None


def test_where_nobody_is_nothing_is_waited_for() -> None:
    assert first({}, 0.0) == (0.0, [])


def test_who_has_all_is_followed_once_it_was_seen_to_renew_that() -> None:
    order = AdapterOrder(NAMES, 0.0)
    # Whole seconds of etcd: what was not renewed seems to come and go by one.
    for now, expires in ((0.0, 8.0), (1.0, 8.9), (2.0, 7.5), (3.0, 9.4)):
        assert order.to_enter({5: WorkerCards(ALL, expires)}, now) is None
    assert order.to_enter({5: WorkerCards(ALL, 13.0)}, 4.0) == ["poet", "New.One"]


def test_who_died_is_followed_by_nobody() -> None:
    order = AdapterOrder(NAMES, 0.0)
    dead = {5: WorkerCards(ALL, 8.0)}
    assert first(dead, 0.0, 4.0, 8.3, order=order) is None
    # Frontends forget it, and with it all prefill, a little later: nobody may be there by then who has no adapters.
    assert order.to_enter({}, 8.3 + SETTLE_SECONDS - 0.1) is None
    assert order.to_enter({}, 8.3 + SETTLE_SECONDS) == []


def test_what_discovery_keeps_longer_of_the_dead_is_waited_for_as_long_and_no_longer() -> None:
    assert first({5: WorkerCards(ALL, 40.0)}, 0.0, 20.0, 45.9, 46.1) == (46.1, [*NAMES])
    assert first({5: WorkerCards(ALL, 4000.0)}, 0.0, MOST_SECONDS - 1, MOST_SECONDS) == (
        MOST_SECONDS,
        [*NAMES],
    )


@pytest.mark.parametrize("models", [{BASE}, {BASE, "poet"}, {"poet"}, {"poet", "new_one"}])
def test_who_lacks_some_is_waited_for_as_long_as_more_may_come(models: set[str]) -> None:
    order, wait = AdapterOrder(NAMES, 0.0), LONGEST_WAIT_SECONDS
    assert first({5: has(*models)}, 0.0, wait - 0.1, order=order) is None
    assert order.to_enter({5: has(*ALL)}, wait) == [*NAMES]
    late = [name for name, short in zip(NAMES, ("poet", "new_one"), strict=True) if short in models]
    assert first({5: has(*models)}, 0.0, wait - 0.1, wait) == (wait, late)


def test_who_enters_many_one_by_one_is_waited_for_until_it_has_all() -> None:
    names = [f"a{number}" for number in range(200)]
    order = AdapterOrder(names, 0.0)
    for number in range(200):
        assert order.to_enter({5: has(BASE, *names[:number])}, number / 5) is None
    assert order.to_enter({5: has(BASE, *names)}, 40.0) == names


def test_what_a_dead_one_had_hides_nothing_of_who_enters_many_one_by_one() -> None:
    names = [f"a{number}" for number in range(100)]
    order = AdapterOrder(names, 0.0)
    dead = WorkerCards(frozenset({BASE, *names}), 8.0)
    for now in range(50):
        others = {5: has(BASE, *names[: 2 * now]), **({6: dead} if now < 8 else {})}
        assert order.to_enter(others, float(now)) is None
    assert order.to_enter({5: has(BASE, *names)}, 50.0) == names


def test_whoever_comes_meanwhile_is_waited_for_within_a_bound() -> None:
    order = AdapterOrder(NAMES, 0.0)
    for now in range(int(MOST_SECONDS)):
        assert order.to_enter({each: has(BASE) for each in range(now + 1)}, float(now)) is None
    assert order.to_enter({each: has(BASE) for each in range(99)}, MOST_SECONDS) == []


def test_discovery_that_says_nothing_is_asked_again_for_a_while() -> None:
    order = AdapterOrder(NAMES, 0.0)
    assert order.to_enter(None, LONGEST_WAIT_SECONDS - 0.1) is None
    assert not order.late(LONGEST_WAIT_SECONDS - 0.1)
    assert order.to_enter(None, LONGEST_WAIT_SECONDS) == []
    assert order.late(LONGEST_WAIT_SECONDS)


def test_discovery_that_falls_silent_has_been_heard() -> None:
    order = AdapterOrder(NAMES, 0.0)
    assert order.to_enter({5: WorkerCards(ALL, 8.0)}, 0.0) is None
    assert order.to_enter(None, 13.9) is None
    assert order.to_enter(None, 14.1) == [*NAMES]


def test_who_has_its_base_model_without_some_is_alone() -> None:
    assert AdapterOrder.any_alone({5: has(*ALL), 6: has(BASE, "poet")}, NAMES)
    assert not AdapterOrder.any_alone({5: has(*ALL), 6: has("poet")}, NAMES)


def test_what_one_of_several_has_is_what_they_have() -> None:
    assert AdapterOrder.those_of({5: has(BASE, "poet"), 6: has("new_one")}, NAMES) == [*NAMES]
    assert AdapterOrder.those_of({5: has(BASE, "other")}, NAMES) == []
