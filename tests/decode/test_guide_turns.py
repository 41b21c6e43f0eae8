from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from wavepp_worker.decode.guide_turns import GuideTurns

from tests.support.waiting import WAIT_SECONDS


def test_who_has_taken_least_comes_first_and_equals_in_order(threads: ThreadPoolExecutor) -> None:
    turns, begun, go = GuideTurns(threads, 1), threading.Event(), threading.Event()
    order: list[bytes] = []

    def hold() -> bytes:
        begun.set()
        return bytes(go.wait(WAIT_SECONDS))

    def find(name: bytes) -> bytes:
        order.append(name)
        return name

    running = turns.submit(0.0, False, hold)
    assert begun.wait(WAIT_SECONDS)
    found = [
        turns.submit(taken, False, lambda name=name: find(name))
        for taken, name in ((0.2, b"c"), (0.1, b"a"), (0.1, b"b"))
    ]
    go.set()
    assert [each.result(WAIT_SECONDS) for each in (running, *found)] == [b"\0", b"c", b"a", b"b"]
    assert order == [b"a", b"b", b"c"]


def test_of_those_known_to_take_long_one_less_runs_than_there_are_threads() -> None:
    go, order = threading.Event(), list[str]()

    def long(name: str) -> bytes:
        order.append(name)
        return bytes(go.wait(WAIT_SECONDS))

    with ThreadPoolExecutor(2) as threads:
        turns = GuideTurns(threads, 2)
        slow = [turns.submit(0.0, True, lambda name=name: long(name)) for name in "ab"]
        for _ in range(3):
            assert turns.submit(9.0, False, bytes).result(WAIT_SECONDS) == b""
        assert order == ["a"]
        go.set()
        assert [each.result(WAIT_SECONDS) for each in slow] == [b"\0", b"\0"]
    assert order == ["a", "b"]


def test_what_fails_fails_for_whoever_asked(threads: ThreadPoolExecutor) -> None:
    def broken() -> bytes:
        raise ValueError("no such token")

    turns = GuideTurns(threads, 1)
    failed, after = turns.submit(0.0, False, broken), turns.submit(0.0, False, bytes)
    with pytest.raises(ValueError, match="no such token"):
        failed.result(WAIT_SECONDS)
    assert after.result(WAIT_SECONDS) == b""


def test_who_waits_for_a_turn_when_the_threads_stop_hears_of_it(threads: ThreadPoolExecutor) -> None:
    turns, begun, go = GuideTurns(threads, 1), threading.Event(), threading.Event()

    def find() -> bytes:
        begun.set()
        return bytes(go.wait(WAIT_SECONDS))

    running, waiting = turns.submit(0.0, False, find), turns.submit(0.0, False, bytes)
    assert begun.wait(WAIT_SECONDS)
    turns.close()
    assert waiting.cancelled()
    go.set()
    assert running.result(WAIT_SECONDS)
