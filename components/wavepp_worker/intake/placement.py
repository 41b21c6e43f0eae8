"""Who says which replica should have a prompt that is sent to the queue."""

from __future__ import annotations

from typing import Protocol


class Placement(Protocol):
    """Knows of the workers that take jobs: what they have, and what they were sent from here."""

    async def choose(self, job_id: str, tokens: list[int], salt: str, *, idle: bool) -> str | None:
        """The replica that a job is to address, within a bounded time; None if any does.

        Args:
            job_id: until ``over`` is called with it, the job counts as that replica's, if one is said.
            tokens: the prompt.
            salt: of the request.
            idle: whether no job waits, so that every replica would take one at once.
        """
        ...

    def over(self, job_id: str) -> None:
        """The job is prefilled, another replica's, or nobody's any more; one that is not known is ignored."""
        ...
