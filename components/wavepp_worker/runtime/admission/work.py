"""What rank 0 asks the ranks next about admission, and what came of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp_worker.runtime.protocol.rounds import Admit


@dataclass(frozen=True)
class Work:
    """The admission part of the next round's plan; see ``Plan``."""

    hint: tuple[str, ...] = ()
    prepare: tuple[Admit, ...] = ()
    exempt: bool = False
    reconcile: tuple[Admit, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hint or self.prepare or self.reconcile)


@dataclass(frozen=True)
class Admission:
    """A request that all ranks admitted: how long it queued, and how long its admission took (seconds).

    Attributes:
        after: the request that computes some of what is before the endpoint; empty if nobody does.
        at: when, in seconds on the caller's clock.
        discovery: of the time it queued, the seconds until its candidate was known.
        attempts: how often it was prepared until then.
    """

    request_id: str
    endpoint: int
    queued: float
    admission: float
    after: str = ""
    at: float = 0.0
    discovery: float = 0.0
    attempts: int = 1
