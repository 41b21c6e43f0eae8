from __future__ import annotations

import threading
from collections.abc import Iterator

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


def test_two_threads_that_tell_each_other_much_at_once_do_not_wait_for_each_other(
    inbox: Inbox[int],
) -> None:
    """A storm of aborts: WAVE tells LOOP of each, LOOP tells WAVE of each, and neither takes meanwhile."""
    sender = threading.Thread(target=lambda: [inbox.put(item) for item in range(10_000)], daemon=True)
    sender.start()
    sender.join(20)
    assert inbox.take() == list(range(10_000)), "putting waits for the other thread to take"
