"""The outcome of a round, computed by the same pure function on every rank from the same votes.

Nothing here looks at a rank's own state: local facts enter as votes only, so that all ranks reach the same
decision without another message, and every state change of a request follows from an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.rounds import Admit, Claim, Plan, Vote

NO_ROOM = Claim(-1, committed=False)


@dataclass(frozen=True)
class RoundOutcome:
    """What a round decided.

    Attributes:
        candidates: of every hinted request: what all ranks believe they can reuse.
        admitted: requests that every rank has committed at one endpoint.
        lower: requests that every rank shall commit again, at the lowest endpoint that any rank reported.
        failed: requests that every rank lets go of at once, as some rank has no room.
    """

    candidates: tuple[Admit, ...] = ()
    admitted: tuple[Admit, ...] = ()
    lower: tuple[Admit, ...] = ()
    failed: tuple[str, ...] = ()


def decide(plan: Plan, votes: Sequence[Vote]) -> RoundOutcome:
    """The outcome of ``plan`` given every rank's vote, in rank order (paper, sections 4.3 to 4.5).

    A candidate is the minimum of the hints. A request is admitted if every rank committed it where it was
    asked to. Otherwise it fails if some rank has no room, and else is lowered: reconciliation only lowers.
    Nobody overtakes in a round: behind one that fails, all that the round prepares after it fail.

    Raises:
        PositionMismatch: a vote does not answer the plan.
    """
    asked = plan.prepare + plan.reconcile
    for vote in votes:
        if len(vote.endpoints) != len(plan.hint) or len(vote.claims) != len(asked):
            raise PositionMismatch(
                f"rank {vote.rank} voted on {len(vote.endpoints)} hints and {len(vote.claims)} claims in round "
                f"{plan.round_id}, which asks for {len(plan.hint)} and {len(asked)}"
            )
    admitted, lower, failed = [], [], []
    blocked = False
    for index, admit in enumerate(asked):
        if index == len(plan.prepare):
            blocked = False
        claims = [vote.claims[index] for vote in votes]
        lowest = min(claim.endpoint for claim in claims)
        short = any(_short(claim, admit) for claim in claims)
        blocked = blocked or short
        if short or (blocked and index < len(plan.prepare)):
            failed.append(admit.request_id)
        elif lowest == admit.endpoint:
            admitted.append(admit)
        else:
            lower.append(Admit(admit.request_id, lowest, admit.writer))
    return RoundOutcome(
        tuple(
            Admit(request_id, min(vote.endpoints[index] for vote in votes))
            for index, request_id in enumerate(plan.hint)
        ),
        tuple(admitted),
        tuple(lower),
        tuple(failed),
    )


def _short(claim: Claim, asked: Admit) -> bool:
    """Whether the rank lacks room, as opposed to reusable prefix."""
    return claim.endpoint < 0 or (claim.endpoint == asked.endpoint and not claim.committed)
