"""Judging the ranks' books: broken, still holding something, or at rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.protocol.events import AuditReport


@dataclass(frozen=True)
class IndexSize:
    """How many blocks the index of a worker has.

    Attributes:
        of_rank: by rank, of those that report what they can reuse, the blocks that it can.
        of_all: the blocks that all of them can reuse.
    """

    of_rank: Mapping[int, int]
    of_all: int


def require_sound(reports: Sequence[AuditReport]) -> None:
    """Raise AuditError if some rank found a broken invariant: no waiting will mend that."""
    broken = [f"rank {report.rank}: {text}" for report in reports for text in report.problems]
    if broken:
        raise AuditError("; ".join(broken))


def still_held(reports: Sequence[AuditReport], live: Sequence[str]) -> list[str]:
    """One sentence per holder of a block or a request; empty at rest (promise 1 of docs/design.md)."""
    held = [
        f"rank {report.rank} knows {len(report.live)} requests {list(report.live[:4])} and has "
        f"{report.free} free + {report.reusable} reusable of {report.capacity} blocks"
        for report in reports
        if report.live or report.free + report.reusable != report.capacity
    ]
    if live:
        held.append(f"the engine still has {len(live)} requests: {list(live[:8])}")
    return held


def index_differs(reports: Sequence[AuditReport], index: IndexSize) -> list[str]:
    """One sentence per rank whose blocks are not those that the index has of it; empty at rest (promise 15)."""
    return [
        f"rank {report.rank} has {report.attached} blocks that can be reused, and the index {told}"
        for report in reports
        if (told := index.of_rank.get(report.rank, report.attached)) != report.attached
    ]


def summary(reports: Sequence[AuditReport], index: IndexSize) -> dict[str, Any]:
    """The books of a worker at rest, as ``PrefillEngine.audit`` returns them."""
    return {
        "ranks": [
            {
                "rank": report.rank,
                "capacity": report.capacity,
                "free": report.free,
                "reusable": report.reusable,
            }
            for report in reports
        ],
        "on_all_ranks": index.of_all,
    }
