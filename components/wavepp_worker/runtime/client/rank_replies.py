"""Asks every rank the same, and gathers what each replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from wavepp_worker.errors import RequestTimeout
from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.protocol.commands import Command


class Reply(Protocol):
    """What one rank says."""

    @property
    def rank(self) -> int: ...


R = TypeVar("R", bound=Reply)


class RankReplies(Generic[R]):
    """One reply of every rank to each question of one kind."""

    def __init__(self, state: EngineState, ranks: int) -> None:
        self._state = state
        self._ranks = ranks
        self._numbers = itertools.count()
        self._replies: dict[int, list[R]] = {}

    def add(self, number: int, reply: R) -> None:
        """Take a rank's reply to question ``number``; one that nobody waits for any more is ignored."""
        with self._state.changed:
            if number in self._replies:
                self._replies[number].append(reply)
                self._state.changed.notify_all()

    def gather(self, question: Callable[[int], Command], seconds: float) -> list[R]:
        """Ask, and wait so long for the replies; returns those that came, in the order of the ranks.

        Args:
            question: makes the command, given its number.

        Raises:
            EngineDead: the engine is not running.
        """
        state = self._state
        with state.changed:
            link = state.running_link()
            number = next(self._numbers)
            replies = self._replies.setdefault(number, [])
            link.send(question(number))
            state.changed.wait_for(lambda: len(replies) == self._ranks or state.death is not None, seconds)
            del self._replies[number]
            state.running_link()
        return sorted(replies, key=lambda reply: reply.rank)

    def gather_all(self, question: Callable[[int], Command], seconds: float) -> list[R]:
        """As ``gather``, of all ranks.

        Raises:
            EngineDead: the engine is not running.
            RequestTimeout: some rank did not reply in time; it may still do what it was asked to.
        """
        replies = self.gather(question, seconds)
        heard = {reply.rank for reply in replies}
        silent = [rank for rank in range(self._ranks) if rank not in heard]
        if silent:
            raise RequestTimeout(
                f"ranks {silent} of {self._ranks} did not reply within {seconds:g} s, and may do what they were asked "
                "to later; a rank replies between two steps of admission, and one that hangs not at all"
            )
        return replies
