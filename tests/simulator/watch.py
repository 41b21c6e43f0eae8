"""What one rank promises while it takes part in rounds, checked whenever it may have broken it."""

from __future__ import annotations

from typing import Any

from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.results import ClearedCache, Prepared
from wavepp_worker.runtime.admission.actions import LockstepActions
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.protocol.commands import Clear
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote
from wavepp_worker.runtime.rank.parts import RankParts


class Watch:
    """Looks over one rank's shoulder.

    Attributes:
        outcomes: of each round, as this rank applied it.
        cleared: the round of each time that the caches were cleared.
        stopped: in lockstep, requests were looked up and are not allocated yet: no wave may run.
    """

    def __init__(self, rank: int, parts: RankParts, *, leases: bool) -> None:
        self.outcomes: dict[int, RoundOutcome] = {}
        self.cleared: dict[int, int] = {}
        self.stopped = False
        self._rank = rank
        self._cache = parts.cache
        self._headroom = parts.actions.headroom_blocks if leases else 0
        self._lockstep = isinstance(parts.actions, LockstepActions)
        self._lowering: set[str] = set()
        actions = parts.actions
        vote, apply, prepare, commit = actions.vote, actions.apply, self._cache.prepare, self._cache.commit
        clear = self._cache.clear

        def watched_vote(plan: Plan) -> Vote:
            assert not (self._lockstep and self.stopped and not self._lowering and plan.release), (
                f"round {plan.round_id} lets go of {plan.release} between look-up and allocation"
            )
            cast = vote(plan)
            self.cleared.update(
                (task.clear_id, plan.round_id) for task in plan.tasks if isinstance(task, Clear)
            )
            self._voted(plan, cast)
            return cast

        def watched_apply(plan: Plan, tally: Tally) -> RoundOutcome:
            outcome = apply(plan, tally)
            self._applied(plan, outcome)
            return outcome

        def watched_prepare(*arguments: Any) -> Prepared | None:
            prepared = prepare(*arguments)
            self._check_committed()
            return prepared

        def watched_clear() -> ClearedCache:
            before = self._held()
            cleared = clear()
            assert self._held() == before, f"rank {rank} has forgotten what requests hold"
            for window in self._cache._windows:
                free = [node.key.hex() for node in window.tree.nodes.values() if not node.pins]
                assert not free, f"rank {rank} has cleared its cache, and keeps {free}, which nobody holds"
            return cleared

        def watched_commit(request_id: str, endpoint: int) -> Prepared:
            prepared = commit(request_id, endpoint)
            self._check_committed()
            return prepared

        actions.vote = watched_vote  # type: ignore[method-assign]
        actions.apply = watched_apply  # type: ignore[method-assign]
        self._cache.prepare = watched_prepare  # type: ignore[method-assign]
        self._cache.clear = watched_clear  # type: ignore[method-assign]
        self._cache.commit = watched_commit  # type: ignore[method-assign]

    def _voted(self, plan: Plan, vote: Vote) -> None:
        self.stopped = self.stopped or (self._lockstep and bool(plan.hint))
        if not self._headroom or plan.exempt or not any(claim.endpoint >= 0 for claim in vote.claims):
            return
        if plan.prepare:
            for window in self._cache._windows:
                # Of a window that reserves less than prompts, it is a share of its own blocks.
                small = window.spec.wave is not None
                headroom = min(self._headroom, window.spec.blocks // 32) if small else self._headroom
                assert window.spec.kind == "recurrent" or window.unreserved >= headroom, (
                    f"round {plan.round_id} leaves {window.unreserved} blocks of window {window.spec.name} on rank "
                    f"{self._rank} to others, not {headroom}"
                )

    def _applied(self, plan: Plan, outcome: RoundOutcome) -> None:
        self.outcomes[plan.round_id] = outcome
        self._lowering.difference_update(plan.release, outcome.failed)
        self._lowering.difference_update(admit.request_id for admit in outcome.admitted)
        self._lowering.update(admit.request_id for admit in outcome.lower)
        if not plan.hint and not self._lowering:
            self.stopped = False

    def _held(self) -> dict[tuple[int, bytes], tuple[Tier, int]]:
        """By window and key, where the blocks are that requests hold and others can reuse."""
        return {
            (number, node.key): (node.tier, node.slot)
            for number, window in enumerate(self._cache._windows)
            for node in window.tree.nodes.values()
            if node.pins
        }

    def _check_committed(self) -> None:
        """What is committed is there, whatever others do: the LOOP may take it at any time."""
        for window in self._cache._windows:
            room, promised = window.tree.room(Tier.DEVICE), window.ledger.promised
            assert promised <= room, (
                f"rank {self._rank} committed {promised} blocks of window {window.spec.name}, where {room} can be had"
            )
