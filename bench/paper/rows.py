"""Measured cells of the paper's evaluation."""

from __future__ import annotations

import msgspec

from bench.common.cells import Cell
from bench.common.kept import Kept


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Why one stage's device stood still: shares of a cell's time, by what it was waiting for.

    Attributes:
        no_work: no request was there that it could have worked on.
        admission: requests were there, but none admitted on this rank.
        upstream: the stage before (on rank 0: a place in the ring, or the planner).
        local: this rank's own host (materialising, planning, launching).
    """

    no_work: float = 0.0
    admission: float = 0.0
    upstream: float = 0.0
    local: float = 0.0

    @property
    def total(self) -> float:
        return self.no_work + self.admission + self.upstream + self.local


class CellRow(Kept, frozen=True, kw_only=True):
    """One measured cell; times in device seconds, throughput in prompt tokens per device second.

    Attributes:
        clock: ``virtual`` (one process) or ``real`` (one process a rank).
        speed: how much faster than the paper's the devices were; 1 on the virtual clock.
        bound: prompt tokens/s that nothing can exceed.
        computed: prompt tokens/s without the reused ones.
        reused: share of the prompt tokens that were not computed.
        reusable: the same, had every prefix been kept.
        rounds: admission rounds.
        planning: median seconds of one planning decision on the host.
        idle: by stage; empty where it was not measured.
    """

    model: str
    policy: str
    family: str
    concurrency: int
    requests: int
    clock: str
    speed: float
    throughput: float
    bound: float
    computed: float
    p50: float
    p95: float
    reused: float
    reusable: float
    waves: int
    rounds: int
    planning: float = 0.0
    idle: tuple[Idle, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes two rows the same measurement."""
        return self.policy, self.model, self.family, self.concurrency


def cell_key(policy: str, cell: Cell) -> tuple[str, str, str, int]:
    """The ``key`` of a cell's row under a policy."""
    return policy, cell.model, cell.family, cell.concurrency
