"""The WAVE thread of ranks 1 … P-1: votes on rank 0's plans and applies their outcomes."""

from __future__ import annotations

from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.lockstep import LockstepAdmission
from wavepp_worker.runtime.rounds import FollowerRounds

HEARTBEAT_SECONDS = 0.5


def run_follower(state: LocalState, rounds: FollowerRounds, admission: LockstepAdmission) -> None:
    """Take part in every round until one says stop."""
    while not state.stopping.is_set():
        plan = rounds.next_plan(HEARTBEAT_SECONDS)
        if plan is None:
            state.heartbeat(waiting=0, running=0)
            continue
        votes = rounds.exchange(admission.vote(plan))
        admission.apply(plan, votes)
