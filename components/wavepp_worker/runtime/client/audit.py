"""Judging the ranks' books: broken, still holding something, or at rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.protocol.events import AuditReport


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


def summary(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """The books of a worker at rest: ``{"ranks": [{"rank", "capacity", "free", "reusable"}, …]}``."""
    return {
        "ranks": [
            {
                "rank": report.rank,
                "capacity": report.capacity,
                "free": report.free,
                "reusable": report.reusable,
            }
            for report in reports
        ]
    }
