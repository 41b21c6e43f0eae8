"""Asks the ranks for their books, as often as it takes until nothing is in flight."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.client.audit import IndexSize, index_differs, require_sound, still_held, summary
from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.client.rank_replies import RankReplies
from wavepp_worker.runtime.protocol.commands import Audit
from wavepp_worker.runtime.protocol.events import AuditReport

AGAIN_SECONDS = 0.02
"""How long after a look at the books that found something held the next one follows."""


class Auditor:
    """Judges the books of all ranks."""

    def __init__(
        self,
        state: EngineState,
        ranks: int,
        reports: RankReplies[AuditReport],
        index_size: Callable[[], IndexSize],
    ) -> None:
        self._state = state
        self._ranks = ranks
        self._reports = reports
        self._index_size = index_size

    def until_at_rest(self, timeout: float) -> dict[str, Any]:
        """The summary of the books once nothing is held.

        Raises:
            AuditError: a rank's books are broken, or after ``timeout`` seconds something is still held or the index
                is not what the ranks can reuse.
            EngineDead: the engine is not running.
        """
        deadline = time.monotonic() + timeout
        while True:
            reports = self._gather(max(1.0, deadline - time.monotonic()))
            require_sound(reports)
            with self._state.lock:
                live = self._state.ledger.names()
            index = self._index_size()
            held = [*still_held(reports, live), *index_differs(reports, index)]
            if not held:
                return summary(reports, index)
            if time.monotonic() > deadline:
                raise AuditError(f"not at rest after {timeout:.0f} s: " + "; ".join(held))
            time.sleep(AGAIN_SECONDS)

    def _gather(self, seconds: float) -> list[AuditReport]:
        reports = self._reports.gather(lambda number: Audit(audit_id=number), seconds)
        if len(reports) < self._ranks:
            heard = [report.rank for report in reports]
            raise AuditError(f"only ranks {heard} of {self._ranks} reported their books in time")
        return reports
