"""Tables, verdict and figures of measured cells, from a handful of rows with figures worked by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.common.cells import CELLS
from bench.common.kept import read_kept, write_kept
from bench.common.policies import POLICIES
from bench.paper.figures import k3_reuse, write_figures
from bench.paper.report import print_report
from bench.paper.rows import CellRow, Idle
from bench.paper.rungs import ablation_cells, steps
from bench.paper.verdict import Finding, not_run, verdict
from bench.paper.views import Results, find_cell, mean_idle
from tests.support.cell_rows import row

GLM = "glm-5.2-pp4"
K3 = "kimi-k3-pp8"


def text(rows: list[CellRow], chosen: str = "") -> str:
    out = io.StringIO()
    print_report(rows, Console(file=out), chosen)
    return out.getvalue()


def finding(rows: list[CellRow], promise: str) -> Finding:
    [found] = [each for each in verdict(Results(rows)) if promise in each.promise]
    return found


def names(found: Finding) -> list[str]:
    return [name for name, _ in found.misses]


def test_the_bound_has_another_limit_at_eight() -> None:
    rows = [
        row(f"{GLM} short cold c=8", "mpu", 0.92),
        row(f"{GLM} long cold c=8", "mpu", 0.8999),
        row(f"{GLM} short cold c=16", "mpu", 0.92),
        row(f"{GLM} long cold c=16", "mpu", 0.95),
        row(f"{GLM} mixed c=32", "mpu", 0.91),
        row(f"{GLM} short reuse c=16", "lease", 0.5),
        row(f"{K3} cold 131K c=4", "mpu", 0.5),
    ]
    many, eight = finding(rows, "95 %"), finding(rows, "90 %")
    assert names(many) == [f"{GLM} mixed c=32", f"{GLM} short cold c=16"]
    assert (many.checked, many.missed) == (3, 2)
    assert names(eight) == [f"{GLM} long cold c=8"]
    # 40 of the 68 cells have c >= 16.
    assert many.unchecked == f"{40 - 3} cells not run"
    assert "91.00%: 91,000 of 100,000 tok/s; stages idle 2.0%, 7.0% of their time" in many.misses[0][1]


def test_the_best_of_ours_may_be_ahead_by_one_per_cent() -> None:
    rows = [
        row(f"{GLM} short cold c=8", "mpu", 0.900),
        row(f"{GLM} short cold c=8", "throttle", 0.908),
        row(f"{GLM} long cold c=8", "mpu", 0.900),
        row(f"{GLM} long cold c=8", "throttle", 0.905),
        row(f"{GLM} long cold c=8", "wave", 0.910),
        row(f"{GLM} mixed c=8", "mpu", 0.9),
    ]
    found = finding(rows, "within 1 %")
    assert found.misses == ((f"{GLM} long cold c=8", "-1.10% against wave: 90,000, 91,000 tok/s"),)
    assert found.checked == 2
    assert found.unchecked == "66 cells not run with mpu beside another policy, 2 cells lack some policy"


def test_p95_is_compared_with_greedy_planning() -> None:
    rows = [
        row(f"{K3} mixed c=16", "mpu", p95=51.1),
        row(f"{K3} mixed c=16", "lease", p95=44.7),
        row(f"{K3} mixed c=32", "mpu", p95=98.0),
        row(f"{K3} mixed c=32", "lease", p95=98.0 * (1 - 1e-9)),
        row(f"{K3} mixed c=8", "mpu", p95=30.0),
        row(f"{K3} mixed c=8", "lockstep", p95=20.0),
    ]
    found = finding(rows, "p95")
    assert found.misses == ((f"{K3} mixed c=16", "+14.32%: 51.10 s, lease 44.70 s"),)
    assert found.checked == 2
    assert found.unchecked == "66 cells not run with mpu and lease"


def test_lost_reuse_is_named_by_family() -> None:
    rows = [
        row(f"{K3} reuse 131K c=8", "wave", reused=0.80),
        row(f"{K3} reuse 131K c=16", "wave", reused=0.70),
        row(f"{K3} reuse 131K c=16", "lease", reused=0.8999),
        row(f"{K3} cold 131K c=16", "wave"),
    ]
    found = finding(rows, "reused all")
    assert found.misses == ((f"{K3} reuse 131K c=8/16 wave", "reused 70.00% of 90.00% at c=16, the least"),)
    assert (found.checked, found.missed) == (3, 2)


def test_a_bound_that_is_exceeded_or_differs_is_named() -> None:
    rows = [
        row(f"{GLM} short cold c=8", "lease", 1.01),
        row(f"{GLM} long cold c=8", "lease", 0.9),
        row(f"{GLM} long cold c=8", "mpu", 0.9, bound=2e5),
    ]
    assert sorted(names(finding(rows, "at most the bound"))) == [
        f"{GLM} long cold c=8",
        f"{GLM} short cold c=8 lease",
    ]


def test_slow_planning_is_named() -> None:
    rows = [
        row(f"{GLM} 4K suffix c=128", "mpu", planning=401e-6),
        row(f"{GLM} 4K suffix c=64", "mpu", planning=199e-6),
        row(f"{GLM} 4K suffix c=32", "mpu", planning=0.0),
    ]
    found = finding(rows, "planned")
    assert found.misses == ((f"{GLM} 4K suffix c=128 mpu", "median 401 us"),)
    assert found.checked == 2


def test_what_was_not_run_is_said() -> None:
    lines = not_run(Results([row(each.name, "mpu") for each in CELLS if each.name != f"{K3} mixed c=16"]))
    assert lines[0] == "lockstep: all 68 cells"
    assert lines[-1] == f"mpu: {K3} (1 of 28: mixed c=16)"
    assert not_run(Results([row(each.name, policy) for each in CELLS for policy in POLICIES])) == []


def test_gains_of_the_ablation_and_where_they_come_from() -> None:
    name = f"{K3} reuse 131K c=8"
    rows = [
        row(name, "lockstep", 0.40, idle=(Idle(admission=0.5), Idle(admission=0.3, upstream=0.2))),
        row(name, "wave", 0.60, idle=(Idle(admission=0.25), Idle(upstream=0.25))),
        row(name, "mpu", 0.90),
    ]
    [(found, reported)] = ablation_cells(Results(rows))
    assert found.name == name
    assert reported.gain["R3"] == pytest.approx(0.540, abs=5e-4)
    assert reported.gain["R4"] == pytest.approx(0.417, abs=5e-4)
    first, second, third, fourth = steps(Results(rows), found)
    assert first.gain is None
    assert second.gain == pytest.approx(0.5)
    # Idle falls from 50 % to 25 %: half as much work again in the same time, which is the whole gain.
    assert second.busier == pytest.approx(0.5)
    assert second.faster == pytest.approx(0.0)
    assert second.idle is not None
    assert second.idle.admission == pytest.approx(0.125 - 0.4)
    assert second.idle.upstream == pytest.approx(0.125 - 0.1)
    assert third.row is None
    # Without R3 nothing is known of what R4 adds to it.
    assert fourth.gain is None
    printed = text(rows)
    assert "+50.0%" in printed
    assert "149,021" in printed


def test_tables_of_two_models_with_missing_cells() -> None:
    rows = [
        row(f"{GLM} short reuse c=16", "lockstep", 0.5),
        row(f"{GLM} short reuse c=16", "mpu", 0.96),
        row(f"{GLM} long cold c=8", "lease", 0.7),
        row(f"{K3} cold 262K c=4", "mpu", 0.93, idle=()),
    ]
    printed = text(rows)
    lines = [line.split() for line in printed.splitlines()]
    throughput = next(line for line in lines if line[:3] == ["short", "reuse", "16"])
    # The paper's systems, the bound, lockstep, no lease, the best, its change and the paper's.
    assert throughput[3:8] == ["351,119", "391,338", "100,000", "50,000", "50.0%"]
    assert throughput[8:] == ["-", "96,000*", "96.0%", "+92.0%", "+11.5%"]
    assert ["cold", "262K", "4", "37.1", "/", "37.7", "10.0", "/", "11.0", "-", "-"] in lines
    assert "9,600 90.0%" in printed
    assert "MiniMax" not in printed
    assert "not run   mpu: at least 90 % of the bound where c = 8" in printed


def test_every_stage_of_a_chosen_cell() -> None:
    rows = [row(f"{GLM} short cold c=8", "mpu"), row(f"{GLM} short cold c=16", "mpu")]
    printed = text(rows, "short cold c=16")
    assert f"{GLM} short cold c=16: idle % of every stage" in printed
    assert ["mpu", "0", "1.00", "0.00", "2.00", "0.00", "3.00"] in [
        line.split() for line in printed.splitlines()
    ]
    with pytest.raises(ValueError, match="names 2 of the measured cells"):
        find_cell("short cold", Results(rows).cells)
    assert find_cell(f"{GLM} short cold c=8", Results(rows).cells).concurrency == 8


def test_no_rows_are_a_verdict_too() -> None:
    printed = text([])
    assert "Verdict on 0 measurements of 0 cells" in printed
    assert "lockstep: all 68 cells" in printed


@pytest.mark.parametrize("width", [60, 140, 300])
def test_numbers_keep_their_digits_on_any_terminal(width: int) -> None:
    out = io.StringIO()
    rows = [row(f"{GLM} 4K suffix c=128", policy) for policy in POLICIES]
    print_report(rows, Console(file=out, width=width, force_terminal=True, color_system=None))
    assert "1,212,572" in out.getvalue()
    # The last column.
    assert "+191.3%" in out.getvalue()
    assert "…" not in out.getvalue()
    first = out.getvalue().partition("completion")[0]
    folded = max(len(line) for line in first.splitlines())
    # With its cells on two lines the widest table needs 134 columns, and 164 on one.
    assert folded == {60: 134, 140: 140, 300: 164}[width]


def test_means_and_files(tmp_path: Path) -> None:
    kept = [row(f"{GLM} short cold c=8", "mpu")]
    idle = mean_idle(kept[0])
    assert idle is not None
    assert idle.upstream == pytest.approx(0.01)
    write_kept(tmp_path / "rows.json", kept)
    assert read_kept(tmp_path / "rows.json", CellRow) == kept


def test_a_kept_file_is_printed_and_drawn(tmp_path: Path) -> None:
    import typer

    from bench.paper.report import main

    app = typer.Typer()
    app.command()(main)
    write_kept(tmp_path / "rows.json", [row(f"{GLM} short cold c=8", "mpu")])
    run = CliRunner().invoke(app, [str(tmp_path / "rows.json"), "--figures", str(tmp_path / "png")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "png" / "pp4-cold.png").exists()
    wrong = CliRunner().invoke(app, [str(tmp_path / "rows.json"), "--cell", "nothing"])
    assert wrong.exit_code == 2


def test_throughput_is_drawn_over_factors_of_time() -> None:
    figure = k3_reuse(Results([row(f"{K3} reuse 131K c={c}", "mpu") for c in (8, 16)]))
    assert figure is not None
    scales = {axes.get_xlabel(): axes.get_xscale() for axes in figure.axes}
    assert scales == {"concurrency": "linear", "p50 completion, seconds": "log"}


def test_figures_are_written_where_there_are_rows(tmp_path: Path) -> None:
    rows = [row(f"{K3} reuse 131K c={c}", policy) for c in (8, 16) for policy in ("lockstep", "mpu")]
    written = write_figures([*rows, row(f"{K3} mixed c=8", "wave", idle=())], tmp_path)
    assert [file.stem for file in written] == [
        "k3-reuse",
        "k3-mixed",
        "ablation",
        "share-of-bound",
        f"idle-{K3}",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in written)
    assert write_figures([], tmp_path / "none") == []
