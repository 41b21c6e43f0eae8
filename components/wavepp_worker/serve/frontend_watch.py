"""Whether the frontend still finds the workers that are there. Pure."""

from __future__ import annotations

import math

BLIND_SECONDS = 20.0
"""Longer than a worker that has just come up, or has just gone, takes to be seen by the frontend."""


class FrontendWatch:
    """Judges whether a frontend lists its model, which it does while it has workers for it.

    A frontend that did not run, or could open no files, for ten seconds has lost its own entries in discovery. Dynamo's
    then serves with the workers it knows, and never takes in one that comes up later.
    """

    def __init__(self) -> None:
        self._blind_since = math.inf

    def blind(self, all_ready: bool, listed: bool, now: float) -> bool:
        """Whether the frontend has to be started anew: it finds nobody, though everybody has been there for long.

        Args:
            all_ready: whether every process says that it is ready.
            listed: whether the frontend lists the model.
            now: monotonic seconds.
        """
        if listed or not all_ready:
            self._blind_since = math.inf
            return False
        self._blind_since = min(self._blind_since, now)
        if now - self._blind_since < BLIND_SECONDS:
            return False
        self._blind_since = math.inf
        return True
