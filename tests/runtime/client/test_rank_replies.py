"""Gathering one reply of every rank: nobody waits for ever, and what comes late is nobody's."""

from __future__ import annotations

import threading

import pytest
from wavepp_worker.errors import EngineDead, RequestTimeout
from wavepp_worker.runtime.client.rank_replies import RankReplies
from wavepp_worker.runtime.protocol.commands import Clear, Command
from wavepp_worker.runtime.protocol.events import Cleared


class State:
    """Of an engine with a link that notes what it sends."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.death: Exception | None = None
        self.sent: list[Command] = []

    def running_link(self) -> State:
        if self.death is not None:
            raise self.death
        return self

    def send(self, command: Command) -> None:
        self.sent.append(command)


def cleared(number: int, rank: int) -> Cleared:
    return Cleared(clear_id=number, rank=rank, forgotten=(rank, 0, 0), held=0)


def made(ranks: int) -> tuple[State, RankReplies[Cleared]]:
    state = State()
    return state, RankReplies(state, ranks)  # type: ignore[arg-type]


def test_replies_come_in_the_order_of_the_ranks_whatever_the_order_they_were_sent_in() -> None:
    state, replies = made(3)

    def answer() -> None:
        for rank in (2, 0, 1):
            replies.add(0, cleared(0, rank))

    threading.Timer(0.02, answer).start()
    assert [each.rank for each in replies.gather_all(lambda number: Clear(clear_id=number), 5)] == [0, 1, 2]
    assert state.sent == [Clear(clear_id=0)]


def test_a_rank_that_does_not_reply_is_named_and_what_it_says_late_is_not_taken_for_another_answer() -> None:
    state, replies = made(3)

    def slowly(number: int) -> Clear:
        threading.Timer(0.01, replies.add, (number, cleared(number, 1))).start()
        return Clear(clear_id=number)

    with pytest.raises(RequestTimeout, match=r"ranks \[0, 2\] of 3 did not reply within 0.1 s"):
        replies.gather_all(slowly, 0.1)
    replies.add(0, cleared(0, 0))
    assert [each.rank for each in replies.gather(slowly, 0.1)] == [1]
    assert state.sent == [Clear(clear_id=0), Clear(clear_id=1)]


def test_an_engine_that_dies_meanwhile_is_waited_for_no_longer() -> None:
    state, replies = made(1)

    def die() -> None:
        with state.changed:
            state.death = EngineDead("rank 0 was ended by SIGKILL")
            state.changed.notify_all()

    threading.Timer(0.02, die).start()
    with pytest.raises(EngineDead, match="SIGKILL"):
        replies.gather(lambda number: Clear(clear_id=number), 60)
