"""The order of those that wait."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.admission.waiting_line import WaitingLine

from tests.support.calls import calls_during


def entry(number: int, priority: int = 0) -> Waiting:
    return Waiting(0.0, 8, number, BlockKeys(), 0, priority)


def test_a_higher_priority_comes_first_and_then_who_came_first() -> None:
    line = WaitingLine()
    for number, priority in enumerate((0, 5, 0, -1, 5)):
        line.append(str(number), entry(number, priority))
    assert [*line] == ["1", "4", "0", "2", "3"]
    assert [name for name, _ in line.items()] == [*line]
    assert [each.number for each in line.values()] == [1, 4, 0, 2, 3]
    assert [each.number for each in line.last_served_first()] == [3, 2, 0, 4, 1]
    assert "4" in line
    assert len(line) == 5


def test_who_is_put_back_comes_before_those_who_came_after() -> None:
    line = WaitingLine()
    for number in range(4):
        line.append(str(number), entry(number, number % 2))
    taken = [(name, line[name]) for name in ("1", "0", "2")]
    for name, _ in taken:
        line.take_out(name)
    assert [*line] == ["3"]
    line.append("4", entry(4))
    line.put_back(taken)
    assert [*line] == ["1", "3", "0", "2", "4"]


def test_it_is_what_a_sort_says_whatever_comes_and_goes() -> None:
    draw, line, there = random.Random(3), WaitingLine(), dict[str, Waiting]()
    out: list[tuple[str, Waiting]] = []
    for number in range(400):
        there[str(number)] = entry(number, draw.choice((0, 0, 1, 7, -2)))
        line.append(str(number), there[str(number)])
        for name in draw.sample([*there], min(len(there), draw.choice((0, 0, 1, 3)))):
            out.append((name, there.pop(name)))
            assert line.take_out(name) is out[-1][1]
            assert line.take_out(name) is None
        if draw.random() < 0.2:
            line.put_back(out)
            there.update(out)
            out.clear()
        line.check()
        assert [*line.values()] == sorted(there.values(), key=lambda each: each.first_come)
        assert line._priorities == sorted({each.priority for each in there.values()}, reverse=True)


def test_who_comes_takes_as_much_however_many_of_other_priorities_wait() -> None:
    def calls(requests: int) -> int:
        line = WaitingLine()
        entries = [(str(number), entry(number, number % 2)) for number in range(requests)]
        return calls_during(lambda: [line.append(*each) for each in entries])[0]

    assert calls(400) < 2.5 * calls(200)


def test_books_that_do_not_agree_are_told() -> None:
    for spoil in (
        lambda line: line._entries.pop("0"),
        lambda line: line._lines[0].pop("0"),
        lambda line: line._priorities.reverse(),
        lambda line: line._lines[0].update({"1": line._lines[1].pop("1")}),
        lambda line: line._lines[1].clear(),
    ):
        line = WaitingLine()
        for number in range(4):
            line.append(str(number), entry(number, number % 2))
        line.check()
        spoil(line)
        with pytest.raises(ValueError, match=r"priorit|requests wait"):
            line.check()
