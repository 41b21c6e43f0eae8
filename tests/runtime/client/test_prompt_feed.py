"""Prompts are submitted ahead of their answers, in order, and not all at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from wavepp_worker.errors import EngineDead, InvalidRequest
from wavepp_worker.runtime.client.prompt_feed import PromptFeed
from wavepp_worker.runtime.client.prompt_lines import PromptLine

from tests.support.waiting import wait_until


def lines(count: int) -> Iterator[PromptLine]:
    for number in range(count):
        yield PromptLine(number, [number], 1)


def test_no_more_than_the_window_is_read_ahead_of_what_is_taken() -> None:
    submitted: list[Any] = []
    window = 5
    feed = PromptFeed(lines(100), lambda prompt: submitted.append(prompt) or Future(), window)
    for taken, asked in enumerate(feed):
        assert asked.line.id == taken
        wait_until(lambda: len(submitted) == min(100, taken + window))  # noqa: B023 - called at once
        assert feed.read <= taken + window + 1
    assert feed.read == 100


def test_an_answer_can_be_taken_while_the_next_line_is_waited_for() -> None:
    another = threading.Event()

    def slow() -> Iterator[PromptLine]:
        yield from lines(1)
        another.wait(30)
        yield from lines(1)

    feed = iter(PromptFeed(slow(), lambda _: Future(), 8))
    assert next(feed).line.id == 0
    another.set()
    assert len(list(feed)) == 1


def test_who_is_refused_fails_alone_and_what_ends_the_engine_ends_the_feed() -> None:
    def submit(prompt: Any) -> Future[Any]:
        if prompt == [1]:
            raise InvalidRequest("bad")
        if prompt == [3]:
            raise EngineDead("gone")
        return Future()

    feed = iter(PromptFeed(lines(9), submit, 8))
    assert [isinstance(next(feed).answer, InvalidRequest) for _ in range(3)] == [False, True, False]
    with pytest.raises(EngineDead, match="gone"):
        next(feed)


def test_once_closed_it_submits_nothing_more() -> None:
    submitted: list[Any] = []
    feed = PromptFeed(lines(100), lambda prompt: submitted.append(prompt) or Future(), 3)
    next(iter(feed))
    wait_until(lambda: feed.read == 4)
    feed.close()
    wait_until(lambda: "prompts" not in {each.name for each in threading.enumerate()})
    assert len(submitted) == 3


def test_closing_it_wakes_who_waits_for_a_line_that_does_not_come() -> None:
    never = threading.Event()

    def silent() -> Iterator[PromptLine]:
        yield from lines(1)
        never.wait(60)

    feed = PromptFeed(silent(), lambda _: Future(), 8)
    threading.Timer(0.05, feed.close).start()
    assert len(list(feed)) == 1
    assert not feed.finished
    never.set()
