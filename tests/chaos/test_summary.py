"""The figures of a run."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from tests.chaos.explain import Health
from tests.chaos.faults import Fault, Injected, Kind, Role
from tests.chaos.judge import Reply, Verdict
from tests.chaos.leaks import LEAST_LIFE_SECONDS, WARM_UP_SECONDS, Held, Left
from tests.chaos.picture import draw
from tests.chaos.record import Outcome, Record
from tests.chaos.summary import summarise
from tests.chaos.tables import print_summary
from tests.chaos.workload import Manner

KILL = Fault(10.0, Kind.KILL, Role.RANK, 0.5)


def record(*outcomes: tuple[float, float, Verdict]) -> Record:
    return Record(
        "default",
        seed=5,
        seconds=100.0,
        injected=[Injected(KILL, 10.0, 10.0, "rank 7"), Injected(KILL, 50.0, 50.0, "")],
        outcomes=[
            Outcome(Manner.WHOLE, Reply(number, began, ended), verdict)
            for number, (began, ended, verdict) in enumerate(outcomes)
        ],
        health=[Health(0.0), Health(90.0)],
    )


def test_faults_requests_and_times() -> None:
    found = summarise(
        record((9.0, 11.0, Verdict.ERROR), (12.0, 14.5, Verdict.RIGHT), (30.0, 33.0, Verdict.RIGHT)), "c", "d"
    )
    (figures,) = found.faults.values()
    assert (figures.injected, figures.missed, figures.recovery) == (1, 1, 4.5)
    assert found.outcomes == {"right answer": 2, "clear error": 1}
    assert (found.longest_answer, found.longest_recovery) == (3.0, 4.5)
    assert found.failures == found.leaks == found.unexplained == []


def test_what_must_not_happen_fails() -> None:
    bad = record((12.0, 14.5, Verdict.WRONG), (30.0, 33.0, Verdict.ERROR))
    bad.after = Left(shared_memory=["x"])
    bad.broken.append("the books do not balance")
    bad.queued = 2
    found = summarise(bad, "c", "d")
    assert len(found.unexplained) == 1
    assert found.leaks == ["shared memory x"]
    assert found.longest_recovery is None
    assert len(found.failures) == 5
    assert "2 jobs are left in the queue, though nobody waits for them" in found.failures


def test_growth_is_told_by_the_hour_and_by_the_request() -> None:
    """Two lives of a role that grow by 1 and 3 MiB a minute, while the graph is asked a hundred times in 100 s."""
    run = record(*((at, at + 0.5, Verdict.RIGHT) for at in range(100)))
    long = int(WARM_UP_SECONDS + LEAST_LIFE_SECONDS)
    run.samples = [
        Held(at, pid, "rank", 1, 1, pid * at * 2**20 // 60) for pid in (1, 3) for at in range(0, long + 5, 5)
    ]
    found = summarise(run, "c", "d")
    assert found.rss_mib_per_hour == {"rank": (120.0, 180.0, 2)}
    assert found.rss_mib_per_10k_requests == {"rank": (333.3, 500.0, 2)}


def test_it_is_shown_as_tables_and_as_a_picture(tmp_path: Path) -> None:
    run = record((12.0, 14.5, Verdict.WRONG), (30.0, 33.0, Verdict.RIGHT))
    run.samples = [Held(10.0 * step, 1, "rank", 1, 1, step << 20) for step in range(100)]
    run.audited, run.jobs, run.queued = 3, 512, 0
    console = Console(file=io.StringIO(), width=120)
    print_summary(console, summarise(run, "abc1234", "2026-11-22"))
    text = console.file.getvalue()
    assert "seed 5" in text
    assert "SIGKILL, rank" in text
    assert "+360.0, at most +360.0 MiB/h" in text
    assert "MiB per 10,000 requests" in text
    assert "failed: WRONG ANSWER" in text
    assert re.search(r"workers whose books balance\W+3\b", text)
    assert re.search(r"jobs that came to the queue\W+512\b", text)
    assert re.search(r"jobs left in the queue\W+0\b", text)
    draw(run, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
