"""What is said of a measured workload."""

from __future__ import annotations

import pytest

from bench.routing.rows import Answer, Row


def answer(reused: int, foretold: float | None, replica: int = 1, seconds: float = 1.0) -> Answer:
    return Answer(seconds=seconds, prompt=100, reused=reused, foretold=foretold, replica=replica)


def row(*answers: Answer) -> Row:
    return Row(workload="w", mode="kv", options="", replicas=2, seconds=4.0, busy=0.5, answers=list(answers))


def test_the_router_is_off_by_blocks_of_which_the_last_is_a_part() -> None:
    assert answer(48, 3 / 7).error == pytest.approx(0)
    assert answer(48, 5 / 7).error == pytest.approx(2)
    assert answer(48, 0.0).error == pytest.approx(-3)
    assert answer(48, None).error is None
    measured = row(answer(48, 5 / 7), answer(48, 0.0), answer(0, None))
    assert measured.errors() == pytest.approx([2, 3])


def test_figures_are_of_tokens_and_of_all_requests() -> None:
    measured = row(answer(48, None, 5, 1.0), answer(0, None, 6, 2.0), answer(96, None, 5, 3.0))
    assert measured.hit_rate == pytest.approx(144 / 300)
    assert measured.throughput == pytest.approx(300 / 4)
    assert (measured.time(0.5), measured.time(0.95)) == (2.0, 3.0)
    assert measured.spread() == "2+1"
