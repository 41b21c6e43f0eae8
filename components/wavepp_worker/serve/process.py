"""One process of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Process:
    """One process to run.

    Attributes:
        service: its service's name.
        replica: counts the service's processes from 0.
        kind: as the service's; ``server`` is the launcher's own, for a queue of jobs.
        argv: the command line.
        env: environment on top of the launcher's.
        port: of its HTTP server: the frontend's API, or a worker's ``/health``, ``/metrics`` and so on.
        url: of that server, as seen from this machine.
        describes: whether it is a worker of ours, which says what it is.
    """

    service: str
    replica: int
    kind: Literal["frontend", "worker", "server"]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    url: str
    describes: bool = False

    @property
    def label(self) -> str:
        return f"{self.service}:{self.replica}"

    def filled(self, places: Mapping[str, str]) -> Process:
        """With what is known by now in the place of each key in its command line."""
        argv = self.argv
        for place, text in places.items():
            argv = tuple(word.replace(place, text) for word in argv)
        return dataclasses.replace(self, argv=argv)
