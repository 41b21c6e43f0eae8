"""Lockstep admission, the paper's minimum implementation (section 4.1), as one rank carries it out.

Two rounds: *walk* parks every executor at its scheduling boundary and looks the prefix up; *admit* pins the
common prefix, allocates the rest on every rank, and lets the executors go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.admission import admitted_requests
from wavepp_worker.runtime.boundary import SchedulingBoundary
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.protocol import Admit, Plan, Vote


class LockstepAdmission:
    """Acts on plans and on their outcomes. Used by the WAVE thread only."""

    def __init__(self, state: LocalState, boundary: SchedulingBoundary) -> None:
        self._state = state
        self._boundary = boundary
        self._parked = False
        self._claimed: list[list[int]] = []

    def vote(self, plan: Plan) -> Vote:
        """Do what ``plan`` says on this rank and report the local facts."""
        state = self._state
        for request in plan.arrivals:
            state.announce(request)
        for request_id in plan.release:
            state.let_go(request_id)
        if plan.audit_id is not None:
            state.audit(plan.audit_id)
        endpoints: tuple[int, ...] = ()
        if plan.walk:
            self._boundary.park(state.config.wait)
            self._parked = True
            endpoints = tuple(state.local_endpoint(request_id) for request_id in plan.walk)
        self._claimed = state.claim(plan.admit)
        return Vote(
            round_id=plan.round_id,
            rank=state.config.rank,
            endpoints=endpoints,
            admitted=len(self._claimed),
        )

    def apply(self, plan: Plan, votes: Sequence[Vote]) -> tuple[Admit, ...]:
        """Carry out the outcome, the same on every rank; returns the requests admitted by all."""
        admitted = admitted_requests(plan, votes)
        for admit, table in zip(admitted, self._claimed, strict=False):
            self._state.install(admit, table)
        for admit in plan.admit[len(admitted) : len(self._claimed)]:
            self._state.cache.release(admit.request_id)
        self._claimed = []
        if self._parked and not plan.walk:
            self._boundary.resume()
            self._parked = False
        self._state.rounds += 1
        if plan.stop:
            self._state.stopping.set()
        return admitted
