from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from wavepp_worker.decode.guide_turns import GuideTurns

from tests.support.waiting import WAIT_SECONDS


def test_who_has_taken_least_comes_first_and_equals_in_order(threads: ThreadPoolExecutor) -> None:
    turns, begun, go = GuideTurns(threads), threading.Event(), threading.Event()
    order: list[bytes] = []

    def hold() -> bytes:
        begun.set()
        return bytes(go.wait(WAIT_SECONDS))

    def find(name: bytes) -> bytes:
        order.append(name)
        return name

    running = turns.submit(0.0, hold)
    assert begun.wait(WAIT_SECONDS)
    found = [
        turns.submit(taken, lambda name=name: find(name))
        for taken, name in ((0.2, b"c"), (0.1, b"a"), (0.1, b"b"))
    ]
    go.set()
    assert [each.result(WAIT_SECONDS) for each in (running, *found)] == [b"\0", b"c", b"a", b"b"]
    assert order == [b"a", b"b", b"c"]


def test_what_fails_fails_for_whoever_asked(threads: ThreadPoolExecutor) -> None:
    def broken() -> bytes:
        raise ValueError("no such token")

    turns = GuideTurns(threads)
    failed, after = turns.submit(0.0, broken), turns.submit(0.0, bytes)
    with pytest.raises(ValueError, match="no such token"):
        failed.result(WAIT_SECONDS)
    assert after.result(WAIT_SECONDS) == b""


def test_who_waits_for_a_turn_when_the_threads_stop_hears_of_it(threads: ThreadPoolExecutor) -> None:
    turns, begun, go = GuideTurns(threads), threading.Event(), threading.Event()

    def find() -> bytes:
        begun.set()
        return bytes(go.wait(WAIT_SECONDS))

    running, waiting = turns.submit(0.0, find), turns.submit(0.0, bytes)
    assert begun.wait(WAIT_SECONDS)
    turns.close()
    assert waiting.cancelled()
    go.set()
    assert running.result(WAIT_SECONDS)
