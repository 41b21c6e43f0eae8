"""The votes on one round as rank 0 gathers them. Pure."""

from __future__ import annotations

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote


class Ballot:
    """One vote of each rank on one plan.

    Attributes:
        plan: what is voted on.
    """

    def __init__(self, plan: Plan, ranks: int) -> None:
        self.plan = plan
        self._ranks = ranks
        self._votes: dict[int, Vote] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not voted."""
        return tuple(rank for rank in range(self._ranks) if rank not in self._votes)

    def cast(self, vote: Vote) -> Tally | None:
        """Take one rank's vote; returns the tally, in rank order, once every rank has voted.

        Raises:
            PositionMismatch: a vote on another round, of a rank that does not exist, or a second one.
        """
        if (
            vote.round_id != self.plan.round_id
            or not 0 <= vote.rank < self._ranks
            or vote.rank in self._votes
        ):
            raise PositionMismatch(
                f"rank {vote.rank} of {self._ranks} voted on round {vote.round_id}; round {self.plan.round_id} is "
                f"open, and ranks {sorted(self._votes)} have voted on it"
            )
        self._votes[vote.rank] = vote
        if len(self._votes) < self._ranks:
            return None
        votes = tuple(self._votes[rank] for rank in range(self._ranks))
        return Tally(round_id=self.plan.round_id, votes=votes)
