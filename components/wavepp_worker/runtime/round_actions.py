"""What one rank does in a round: act on the plan, vote, and apply the outcome once the votes are known."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.admission import Outcome, decide
from wavepp_worker.runtime.boundary import SchedulingBoundary
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.ownership import Ownership
from wavepp_worker.runtime.protocol import Plan, Vote


class RoundActions:
    """Wave admission (paper, section 4.2): beside execution, which it never stops. Used by the WAVE thread."""

    def __init__(self, state: LocalState, ownership: Ownership) -> None:
        self._state = state
        self._ownership = ownership

    def vote(self, plan: Plan) -> Vote:
        """Do what ``plan`` says on this rank and report the local facts."""
        state = self._state
        for request in plan.arrivals:
            state.announce(request)
        for request_id in plan.release:
            state.let_go(request_id)
        if plan.audit_id is not None:
            state.audit(plan.audit_id)
        floor = 0 if plan.exempt else state.config.headroom
        claims = self._ownership.prepare(plan.prepare, floor)
        claims += [self._ownership.commit(admit) for admit in plan.reconcile]
        return Vote(
            round_id=plan.round_id,
            rank=state.config.rank,
            endpoints=tuple(self._endpoint(request_id) for request_id in plan.hint),
            claims=tuple(claims),
        )

    def apply(self, plan: Plan, votes: Sequence[Vote]) -> Outcome:
        """Carry out the outcome, the same on every rank."""
        outcome = decide(plan, votes)
        for admit in outcome.admitted:
            self._ownership.admitted(admit)
        for request_id in outcome.failed:
            self._ownership.failed(request_id)
        self._state.rounds += 1
        if plan.stop:
            self._state.stopping.set()
        return outcome

    def _endpoint(self, request_id: str) -> int:
        local = self._state.requests.known(request_id)
        return self._state.cache.hint(local.keys, local.request.prompt_tokens)


class LockstepActions(RoundActions):
    """The paper's minimum implementation (section 4.1): executors pause from the look-up to the allocation.

    A round that looks prefixes up parks every executor at its scheduling boundary, and walks the tree itself;
    the next one allocates at the common endpoint and lets the executors go on.
    """

    def __init__(self, state: LocalState, ownership: Ownership, boundary: SchedulingBoundary) -> None:
        super().__init__(state, ownership)
        self._boundary = boundary
        self._parked = False

    def vote(self, plan: Plan) -> Vote:
        if plan.hint and not self._parked:
            self._boundary.park(self._state.config.wait)
            self._parked = True
        return super().vote(plan)

    def apply(self, plan: Plan, votes: Sequence[Vote]) -> Outcome:
        outcome = super().apply(plan, votes)
        if self._parked and not plan.hint and not outcome.lower:
            self._boundary.resume()
            self._parked = False
        return outcome

    def _endpoint(self, request_id: str) -> int:
        local = self._state.requests.known(request_id)
        return self._state.cache.match(local.keys, local.request.prompt_tokens)
