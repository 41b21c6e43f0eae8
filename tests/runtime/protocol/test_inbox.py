from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest
import zmq
from wavepp_worker.runtime.protocol.inbox import Inbox


@pytest.fixture
def inbox() -> Iterator[Inbox[int]]:
    with zmq.Context() as context:
        made: Inbox[int] = Inbox(context, "test")
        yield made
        made.close()


def test_items_arrive_in_order_and_once(inbox: Inbox[int]) -> None:
    for item in range(5):
        inbox.put(item)
    assert inbox.take() == [0, 1, 2, 3, 4]
    assert inbox.take() == []
    assert not inbox.socket.poll(0), "a wait beside sockets would wake for nothing"


def test_an_item_wakes_whoever_polls(inbox: Inbox[int]) -> None:
    assert not inbox.socket.poll(0)
    sender = threading.Timer(0.05, inbox.put, (7,))
    sender.start()
    assert inbox.socket.poll(10_000)
    sender.join()
    assert inbox.take() == [7]


def test_whoever_polls_is_woken_once_until_it_looks(inbox: Inbox[int]) -> None:
    for _ in range(2):
        for item in range(5):
            inbox.put(item)
        inbox.socket.recv()
        assert not inbox.socket.poll(0), "each further ring would be a system call for nothing"
        assert inbox.take() == [0, 1, 2, 3, 4]


def test_what_is_put_just_after_the_last_item_was_taken_wakes_again(inbox: Inbox[int]) -> None:
    class Late(SimpleQueue[int]):
        """Somebody puts an item when the other side has just found nothing more."""

        def get_nowait(self) -> int:
            try:
                return super().get_nowait()
            except Empty:
                inbox._queue = plain
                inbox.put(2)
                raise

    plain: SimpleQueue[int] = SimpleQueue()
    inbox._queue = Late()
    inbox.put(1)
    assert inbox.take() == [1]
    assert inbox.socket.poll(1000), "it would lie there until something else comes"
    assert inbox.take() == [2]


def test_two_threads_that_tell_each_other_much_at_once_do_not_wait_for_each_other(
    inbox: Inbox[int],
) -> None:
    """A storm of aborts: WAVE tells LOOP of each, LOOP tells WAVE of each, and neither takes meanwhile."""
    sender = threading.Thread(target=lambda: [inbox.put(item) for item in range(10_000)], daemon=True)
    sender.start()
    sender.join(20)
    assert inbox.take() == list(range(10_000)), "putting waits for the other thread to take"
