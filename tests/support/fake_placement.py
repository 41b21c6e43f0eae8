"""Stands in for a router over the workers that take jobs."""

from __future__ import annotations


class Chosen:
    """A ``Placement`` that always says the same."""

    def __init__(self, replica: str | None) -> None:
        self.replica = replica
        self.asked: list[tuple[list[int], str, bool]] = []
        self.held: set[str] = set()

    async def choose(self, job_id: str, tokens: list[int], salt: str, *, idle: bool) -> str | None:
        self.asked.append((tokens, salt, idle))
        if self.replica is not None:
            self.held.add(job_id)
        return self.replica

    def over(self, job_id: str) -> None:
        self.held.discard(job_id)
