"""The retention sweep beside the paper's, from points made up."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.common.kept import read_kept, write_kept
from bench.common.tables import print_table
from bench.retention.report import RetentionPoint, retention_table, times_table, write_retention_figure


def test_retention_beside_the_paper(tmp_path: Path) -> None:
    points = [
        RetentionPoint(rate=0.5, policy="mpu", good_hits=0.99, p50=4.0, p95=6.5, throughput=61_000.0),
        RetentionPoint(rate=1.0, policy="mpu", good_hits=1.00, p50=5.0, p95=9.0, throughput=122_000.0),
        RetentionPoint(rate=0.6, policy="lockstep", good_hits=0.5, p50=5.0, p95=9.0, throughput=70_000.0),
    ]
    write_kept(tmp_path / "points.json", points)
    assert read_kept(tmp_path / "points.json", RetentionPoint) == points
    out = io.StringIO()
    for table in (retention_table(points), times_table(points)):
        print_table(Console(file=out), table)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["0.500", "82%", "100%", "-", "99.0%", "-1"] in lines
    assert ["0.600", "-", "-", "50.0%", "-", "-"] in lines
    assert ["0.625", "76%", "92%", "-", "-", "-"] in lines
    assert ["1.000", "83%", "97%", "-", "100.0%", "+3"] in lines
    assert ["1.000", "-", "5.0", "/", "9.0", "122,000"] in lines
    assert write_retention_figure(points, tmp_path / "retention.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        write_retention_figure([], tmp_path / "none.png")
