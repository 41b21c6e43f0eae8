"""The requests an engine has accepted and not yet fully let go of. Pure bookkeeping."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from wavepp_worker.runtime.messages import PrefillRequest, PrefillResult, Timings
from wavepp_worker.runtime.protocol import Admitted, Finished


@dataclass
class LiveRequest:
    """One request, from submission until no rank holds anything for it.

    Attributes:
        submitted: monotonic seconds.
        deadline: monotonic seconds after which it fails.
        answered: monotonic seconds at which the last rank's answer arrived.
        closed: its future has, or is about to have, a result or an error.
        aborted: the ranks were asked to let go of it.
        released: they have; a hand-off may still be settling.
        settled: ranks whose hand-off is over.
    """

    request: PrefillRequest
    future: Future[PrefillResult]
    submitted: float
    deadline: float
    admitted: Admitted | None = None
    finished: Finished | None = None
    answered: float = 0.0
    closed: bool = False
    aborted: bool = False
    released: bool = False
    settled: set[int] = field(default_factory=set)

    def result(self) -> PrefillResult | None:
        """The answer, once both rank 0 and the last rank have reported."""
        if self.admitted is None or self.finished is None:
            return None
        total = self.answered - self.submitted
        return PrefillResult(
            request_id=self.request.request_id,
            first=self.finished.first,
            prompt_tokens=self.request.prompt_tokens,
            reused_tokens=self.admitted.endpoint,
            timings=Timings(
                queued=self.admitted.queued,
                admission=self.admitted.admission,
                execution=max(0.0, total - self.admitted.queued - self.admitted.admission),
                total=total,
                stages=self.finished.stages,
            ),
        )

    def over(self, ranks: int) -> bool:
        """Whether no rank holds anything for it any more, as far as the engine has heard."""
        if self.request.handoff and self.admitted is not None:
            return self.closed and len(self.settled) == ranks
        if self.aborted:
            return self.released
        return self.closed
