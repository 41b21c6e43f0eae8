"""Two kept runs beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.common.kept import read_kept, write_kept
from bench.paper.compare import main, moves
from bench.paper.rows import CellRow
from tests.support.cell_rows import row

GLM = "glm-5.2-pp4"
OLD = [
    row(f"{GLM} short cold c=8", "mpu", 0.900, p95=10.0, commit="aaaaaaa", date="2026-01-01"),
    row(f"{GLM} short cold c=16", "mpu", 0.900),
    row(f"{GLM} short cold c=32", "mpu", 0.900),
    row(f"{GLM} short cold c=8", "lease", 0.900),
]
NEW = [
    row(f"{GLM} short cold c=8", "mpu", 0.9018, p95=11.0, commit="bbbbbbb+", date="2026-02-02"),
    row(f"{GLM} short cold c=16", "mpu", 0.8928, requests=256),
    row(f"{GLM} short cold c=32", "mpu", 0.918),
]


def compare(tmp_path: Path, old: list[CellRow], new: list[CellRow], *words: str) -> tuple[int, str]:
    write_kept(tmp_path / "old.json", old)
    write_kept(tmp_path / "new.json", new)
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, [str(tmp_path / "old.json"), str(tmp_path / "new.json"), *words])
    return done.exit_code, done.output


def test_the_largest_move_comes_first_whichever_way_it_goes() -> None:
    found = moves(OLD, NEW)
    assert [move.new.concurrency for move in found] == [32, 16, 8]
    assert [move.throughput for move in found] == pytest.approx([1.02, 0.992, 1.002])
    assert found[-1].p95 == pytest.approx(1.1)


def test_what_is_printed_and_the_exit_code(tmp_path: Path) -> None:
    code, printed = compare(tmp_path, OLD, NEW)
    lines = [line.split() for line in printed.splitlines()]
    assert lines[4][:8] == [GLM, "short", "cold", "c=32", "mpu", "90,000", "91,800", "+2.00%"]
    assert lines[5][-1] == "64/256", "measured with other numbers of requests"
    assert lines[6][-4:] == ["+0.20%", "10.00", "11.00", "+10.00%"]
    assert "old: 2 at an unrecorded commit; 1 at aaaaaaa, 2026-01-01" in printed
    assert "new: 2 at an unrecorded commit; 1 at bbbbbbb+, 2026-02-02" in printed
    assert "in one file only: 1 old, 0 new" in printed
    assert "1 of 3 throughputs moved by more than 1 %" in printed
    assert code == 1


@pytest.mark.parametrize(("tolerance", "code"), [("1.9", 1), ("2.1", 0), ("0.5", 1)])
def test_the_tolerance_decides(tmp_path: Path, tolerance: str, code: int) -> None:
    assert compare(tmp_path, OLD, NEW, "--tolerance", tolerance)[0] == code


def test_a_loss_counts_as_a_gain_does(tmp_path: Path) -> None:
    assert compare(tmp_path, OLD[1:2], NEW[1:2], "--tolerance", "0.7")[0] == 1
    assert compare(tmp_path, OLD[1:2], NEW[1:2], "--tolerance", "0.9")[0] == 0


def test_what_does_not_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no measurement in common"):
        moves(OLD[:1], NEW[1:])
    real = row(f"{GLM} short cold c=8", "mpu", clock="real", speed=4.0)
    with pytest.raises(ValueError, match="the real clock at speed 4 and the virtual clock at speed 1"):
        moves(OLD[:1], [real])
    assert compare(tmp_path, OLD[:1], NEW[1:])[0] == 2


def test_rows_from_before_the_commit_was_kept_are_read(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    write_kept(file, OLD[1:2])
    text = file.read_text().replace('"commit": null,', "").replace('"date": null,', "")
    assert "commit" not in text
    (tmp_path / "bare.json").write_text(text)
    assert read_kept(tmp_path / "bare.json", CellRow) == OLD[1:2]
