"""What one rank does in a round: act on the plan, vote, and apply the outcome once the votes are known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from wavepp_worker.runtime.admission.outcome import RoundOutcome, decide
from wavepp_worker.runtime.admission.ownership import Ownership
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.protocol.rounds import Plan, Vote
from wavepp_worker.runtime.state.local_state import LocalState
from wavepp_worker.runtime.trace.timeline import NOTHING, Named


class RoundActions:
    """Wave admission (paper, section 4.2): beside execution, which it never stops. Used by the WAVE thread."""

    def __init__(self, state: LocalState, ownership: Ownership) -> None:
        self._state = state
        self._ownership = ownership
        self._begun = self._voted = 0

    def vote(self, plan: Plan) -> Vote:
        """Do what ``plan`` says on this rank and report the local facts."""
        state = self._state
        self._begun = state.timeline.now()
        with self._part("announce", plan.arrivals):
            for request in plan.arrivals:
                state.announce(request)
        with self._part("let go", plan.release):
            for request_id in plan.release:
                state.let_go(request_id)
        if plan.audit_id is not None:
            state.audit(plan.audit_id)
        floor = 0 if plan.exempt else state.config.headroom
        with self._part("prepare", plan.prepare):
            claims = self._ownership.prepare(plan.prepare, floor)
        with self._part("commit", plan.reconcile):
            claims += [self._ownership.commit(admit) for admit in plan.reconcile]
        with self._part("hint", plan.hint):
            endpoints = tuple(self._endpoint(request_id) for request_id in plan.hint)
        self._voted = state.timeline.now()
        return Vote(round_id=plan.round_id, rank=state.config.rank, endpoints=endpoints, claims=tuple(claims))

    def apply(self, plan: Plan, votes: Sequence[Vote]) -> RoundOutcome:
        """Carry out the outcome, the same on every rank."""
        timeline = self._state.timeline
        timeline.record("admission", "wait for votes", self._voted, timeline.now())
        outcome = decide(plan, votes)
        with self._part("apply", (*outcome.admitted, *outcome.failed)):
            for admit in outcome.admitted:
                self._ownership.admitted(admit)
            for request_id in outcome.failed:
                self._ownership.failed(request_id)
        timeline.record("admission", f"round {plan.round_id}", self._begun, timeline.now())
        self._state.rounds += 1
        if plan.stop:
            self._state.stopping.set()
        return outcome

    def _part(self, name: str, requests: Sequence[str | Named]) -> AbstractContextManager[None]:
        return self._state.timeline.span("admission", name, requests=requests) if requests else NOTHING

    def _endpoint(self, request_id: str) -> int:
        local = self._state.requests.known(request_id)
        return self._state.cache.hint(local.keys, local.request.prompt_tokens)


class LockstepActions(RoundActions):
    """The paper's minimum implementation (section 4.1): executors pause from the look-up to the allocation.

    A round that looks prefixes up parks every executor at its ``WaveGate``, and walks the tree itself;
    the next one allocates at the common endpoint and lets the executors go on.
    """

    def __init__(self, state: LocalState, ownership: Ownership, gate: WaveGate) -> None:
        super().__init__(state, ownership)
        self._gate = gate
        self._parked = False
        self._parked_at = 0

    def vote(self, plan: Plan) -> Vote:
        if plan.hint and not self._parked:
            with self._state.timeline.span("admission", "park"):
                self._gate.park(self._state.config.wait)
            self._parked = True
            self._parked_at = self._state.timeline.now()
        return super().vote(plan)

    def apply(self, plan: Plan, votes: Sequence[Vote]) -> RoundOutcome:
        outcome = super().apply(plan, votes)
        if self._parked and not plan.hint and not outcome.lower:
            self._gate.resume()
            self._parked = False
            self._state.timeline.record("parked", "parked", self._parked_at, self._state.timeline.now())
        return outcome

    def _endpoint(self, request_id: str) -> int:
        local = self._state.requests.known(request_id)
        return self._state.cache.match(local.keys, local.request.prompt_tokens)
