"""The outcome of a round, computed by the same pure functions on every rank from the same votes.

Nothing here looks at a rank's own state: local facts enter as votes only, so that all ranks reach the same
decision without another message.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.protocol import Admit, Plan, Vote


def agreed_endpoints(plan: Plan, votes: Sequence[Vote]) -> tuple[Admit, ...]:
    """The common reuse endpoint of every walked request: the minimum over the ranks (paper, section 4.1)."""
    return tuple(
        Admit(request_id, min(vote.endpoints[index] for vote in votes))
        for index, request_id in enumerate(plan.walk)
    )


def admitted_requests(plan: Plan, votes: Sequence[Vote]) -> tuple[Admit, ...]:
    """The leading requests that *every* rank could admit; the others are let go by all (promise 8)."""
    return plan.admit[: min(vote.admitted for vote in votes)]
