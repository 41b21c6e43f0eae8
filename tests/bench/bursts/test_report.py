"""Tables of bursts, from rows made up."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from bench.bursts.report import missed, print_report
from bench.bursts.rows import BurstRow


def row(**values: Any) -> BurstRow:
    values = {
        "name": "burst",
        "stages": 4,
        "making": True,
        "clock": "virtual",
        "sessions": 16,
        "requests": 16,
        "tokens": 16_000,
        "computed": 2_000,
        "least": 2_000,
        "seconds": 2.0,
        "p50": 1.5,
        "p95": 1.9,
        "waves": 7,
        "rounds": 3,
        "bound": 1.96,
        **values,
    }
    return BurstRow(**values)


def test_what_computes_too_much_or_ends_too_late_is_named() -> None:
    assert missed([row()]) == []
    assert missed([row(computed=2_120)]) == ["burst, virtual, 4 stages: computed 1.060 of the fewest tokens"]
    assert missed([row(seconds=2.8)]) == ["burst, virtual, 4 stages: 70.0% of the bound"]
    assert missed([row(seconds=2.8, forced=2.1)]) == [
        "burst, virtual, 4 stages: 70.0% of the bound, 75.0% of the forced"
    ]
    assert missed([row(seconds=2.8, forced=2.7)]) == [], "more cannot be reached"
    assert missed([row(seconds=2.8, sessions=8)]) == [], "few are answered when they are"
    assert missed([row(computed=9_000, seconds=9.0, making=False)]) == [], "only compared with"
    assert missed([row(computed=4_000, interval=512)]) == [
        "burst, virtual, 4 stages, a snapshot every 512 tokens: computed 2.000 of the fewest tokens"
    ]


def test_layers_with_snapshots_have_a_table_of_their_own() -> None:
    out = io.StringIO()
    print_report([row(), row(interval=512, computed=4_000)], Console(file=out))
    assert out.getvalue().count("virtual devices, 4 stages") == 2
    assert "virtual devices, 4 stages, a snapshot every 512 tokens" in out.getvalue()


def test_a_line_has_both_and_what_has_no_bound_says_so() -> None:
    out = io.StringIO()
    rows = [
        row(forced=1.94),
        row(making=False, computed=16_000, seconds=4.0, forced=1.94),
        row(clock="real", bound=0.0),
    ]
    print_report(rows, Console(file=out))
    lines = [line.split() for line in out.getvalue().splitlines()]
    both = next(line for line in lines if line[:1] == ["burst"] and len(line) > 9)
    assert both[1:9] == ["1.000", "(8.000)", "98.0%", "(49.0%)", "97.0%", "(48.5%)", "2.00", "(4.00)"]
    assert ["burst", "1.000", "-", "-", "2.00", "1.50", "1.90", "7", "3"] in lines
    assert "2 cells: computed at most 1.000" in out.getvalue()
