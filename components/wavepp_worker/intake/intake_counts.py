"""How many jobs a replica has and how those ended that it had. Thread-safe to read."""

from __future__ import annotations

from collections import Counter


class IntakeCounts:
    """Written on the intake's event loop alone.

    Attributes:
        held: jobs that were taken and are not over here.
        waiting: those of them that are not admitted.
        queued: jobs in the queue that nobody has taken, when it was last looked at.
        stolen: jobs that addressed another replica, which did not take them in time.
        outcomes: deliveries that ended, by how.
    """

    def __init__(self) -> None:
        self.held = 0
        self.waiting = 0
        self.queued = 0
        self.stolen = 0
        self.outcomes: Counter[str] = Counter()

    def ended(self, outcome: str) -> None:
        """A delivery ended."""
        self.outcomes[outcome] += 1
