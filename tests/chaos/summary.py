"""The figures of a campaign: what is kept as JSON and printed as tables. Pure."""

from __future__ import annotations

import statistics
from collections import Counter

import msgspec

from tests.chaos.explain import recovery, unexplained
from tests.chaos.judge import FAILURES
from tests.chaos.leaks import grown, left_over, rss_slopes
from tests.chaos.record import Record

Growth = tuple[float, float, int]
"""The median and the largest slope of some lives, and how many lives."""


class FaultFigures(msgspec.Struct):
    """One kind of fault on one role.

    Attributes:
        injected: how often.
        missed: how often nobody was there to hurt.
        recovery: longest seconds from the fault to a right answer to a request sent after it; None if there was
            no such answer after one of them.
    """

    injected: int = 0
    missed: int = 0
    recovery: float | None = 0.0


class Summary(msgspec.Struct):
    """One run over one graph.

    Attributes:
        setting, seed, seconds: of the run.
        commit, date: where the code comes from.
        faults: by ``kind, role``.
        outcomes: requests by verdict.
        unexplained: errors that no fault explains, as sentences.
        longest_answer: seconds of the request that took longest to its answer or its error.
        longest_recovery: seconds; the longest of all faults.
        audited: workers whose books balance at the end.
        jobs: that came to the queue in all; None if there is no queue.
        queued: jobs that are left in the queue at the end; None if there is no queue.
        leaks: sentences; none if all is well.
        rss_mib_per_hour: by role, the median and the largest slope of RSS in all long lives, and how many there were.
        rss_mib_per_10k_requests: the same, for 10,000 requests that the graph was asked at the run's mean rate.
        failures: sentences about all that must not be; none if all is well.
    """

    setting: str
    seed: int
    seconds: float
    commit: str
    date: str
    faults: dict[str, FaultFigures]
    outcomes: dict[str, int]
    unexplained: list[str]
    longest_answer: float
    longest_recovery: float | None
    audited: int
    jobs: int | None
    queued: int | None
    leaks: list[str]
    rss_mib_per_hour: dict[str, Growth]
    rss_mib_per_10k_requests: dict[str, Growth]
    failures: list[str]


def summarise(record: Record, commit: str, date: str) -> Summary:
    """The figures of one run."""
    judged = [(each.reply, each.verdict) for each in record.outcomes]
    faults: dict[str, FaultFigures] = {}
    for each in sorted(record.injected, key=lambda injected: injected.began):
        figures = faults.setdefault(f"{each.fault.kind.value}, {each.fault.role.value}", FaultFigures())
        if not each.victim:
            figures.missed += 1
            continue
        figures.injected += 1
        took = recovery(each, judged)
        known = took is not None and figures.recovery is not None
        figures.recovery = round(max(took, figures.recovery), 1) if known else None
    recoveries = [each.recovery for each in faults.values() if each.injected]
    strange = [f"{reply}" for reply, _ in unexplained(judged, record.injected, record.health)]
    leaks = [*grown(record.first, record.last), *left_over(record.before, record.after)]
    left = (
        [f"{record.queued} jobs are left in the queue, though nobody waits for them"] if record.queued else []
    )
    wrong = [f"{verdict.value}: {reply}" for reply, verdict in judged if verdict in FAILURES]
    return Summary(
        setting=record.setting,
        seed=record.seed,
        seconds=record.seconds,
        commit=commit,
        date=date,
        faults=dict(sorted(faults.items())),
        outcomes=dict(Counter(verdict.value for _, verdict in judged).most_common()),
        unexplained=strange,
        longest_answer=round(max((reply.ended - reply.began for reply, _ in judged), default=0.0), 1),
        longest_recovery=None if None in recoveries else max(recoveries, default=0.0),
        audited=record.audited,
        jobs=record.jobs,
        queued=record.queued,
        leaks=leaks,
        rss_mib_per_hour=_growth(record, 3600.0),
        rss_mib_per_10k_requests=_growth(record, 10_000 * record.seconds / max(1, len(judged))),
        failures=[*wrong, *(f"without a fault: {each}" for each in strange), *leaks, *left, *record.broken],
    )


def _growth(record: Record, seconds: float) -> dict[str, Growth]:
    """By role, MiB that RSS grew by in so many seconds."""
    return {
        role: (
            round(statistics.median(slopes) * seconds / 2**20, 1),
            round(max(slopes) * seconds / 2**20, 1),
            len(slopes),
        )
        for role, slopes in sorted(rss_slopes(record.samples).items())
    }
