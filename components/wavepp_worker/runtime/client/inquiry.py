"""Asks rank 0's threads where requests are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.client.request_ledger import LiveRequest
from wavepp_worker.runtime.client.whereabouts import Heard, whereabouts
from wavepp_worker.runtime.protocol.commands import Explain
from wavepp_worker.runtime.protocol.events import AdmissionExplained, LanesExplained
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts

ANSWER_SECONDS = 2.0
"""How long rank 0's threads may take to say where requests are; one that computes a wave is not disturbed."""
MOST = 20
"""Most requests that are told of."""
ASKED = 3 * MOST
"""Of so many is asked, as some come to their end meanwhile."""
TRIES = 3
"""How often is asked, while too few of them are left to tell of."""


class Inquiry:
    """Gathers what both threads of rank 0 and the ledger know of some requests."""

    def __init__(self, state: EngineState, ranks: int) -> None:
        self._state = state
        self._ranks = ranks
        self._numbers = itertools.count()
        self._answers: dict[int, Heard] = {}

    def add(self, answer: AdmissionExplained | LanesExplained) -> None:
        """Take what a thread said; nobody waits any more for what comes late."""
        with self._state.changed:
            heard = self._answers.get(answer.question_id)
            if heard is not None:
                heard.take(answer)
                self._state.changed.notify_all()

    def ask(self, request_id: str | None) -> list[Whereabouts]:
        """Where a request is, or those that came first are; see ``PrefillEngine.why``.

        Raises:
            EngineDead: the engine is not running.
        """
        with self._state.changed:
            ledger = self._state.ledger
            self._state.running_link()
            if request_id is not None:
                found = ledger.find(request_id)[:MOST]
                return self._ask_about(found)[0] if found else []
            where: list[Whereabouts] = []
            for _ in range(TRIES):
                found = ledger.longest(ASKED)
                told = self._ask_about(found)[0][:MOST] if found else []
                where = max(where, told, key=len)
                if len(where) >= len(ledger.longest(MOST)):
                    break
            return where

    def survey(self, most: int) -> tuple[list[Whereabouts], Heard]:
        """Where at most so many requests are, those that came first, and what rank 0's threads said in all.

        Raises:
            EngineDead: the engine is not running.
        """
        with self._state.changed:
            return self._ask_about(self._state.ledger.longest(most))

    def _ask_about(self, found: Sequence[LiveRequest]) -> tuple[list[Whereabouts], Heard]:
        """Under the engine's lock, which is let go of while rank 0 is waited for."""
        state, ledger = self._state, self._state.ledger
        link = state.running_link()
        question_id = next(self._numbers)
        heard = self._answers[question_id] = Heard()
        link.send(
            Explain(question_id=question_id, request_ids=tuple(live.request.request_id for live in found))
        )
        state.changed.wait_for(lambda: heard.complete or state.death is not None, ANSWER_SECONDS)
        del self._answers[question_id]
        state.running_link()
        heard.beats = state.roster.beats()
        now = time.monotonic()
        # While they were asked, some have come to their end.
        where = [
            whereabouts(live, heard, now, self._ranks, ledger.name)
            for live in found
            if ledger.get(live.name) is live
        ]
        return where, heard
