"""Descriptors that a worker holds without a use, to have some left when there are no more."""

from __future__ import annotations

import os

SPARE_DESCRIPTORS = 16
"""Enough for the connections of a few answers, and for what discovery has to be told."""


class SpareDescriptors:
    """Held until given up. Not thread-safe."""

    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        """None is held yet."""
        self._count = count
        self._held: list[int] = []

    def hold(self) -> bool:
        """Hold as many as are missing, and be able to open one more; False if there are not so many."""
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return False
        return True

    def give_up(self) -> None:
        """Let whoever needs some have them; idempotent."""
        while self._held:
            os.close(self._held.pop())
