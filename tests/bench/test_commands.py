"""The measuring commands run to their end and print what they promise; on small inputs, so the figures mean nothing."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench.__main__ import COMMANDS
from bench.bursts.measure import measure_virtual
from bench.bursts.traffic import VIRTUAL_CELLS
from tests.support.warm_processes import WarmProgram

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
ROOT = Path(__file__).parents[2]
MODULES = [command.split()[0] for command in COMMANDS]
MEASURED = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "measurements").glob("*.md"))
PAGES = ["README.md", "docs/benchmarks.md", "docs/measurements.md", *MEASURED]


def run(*arguments: str) -> str:
    """``python -m ARGUMENTS`` in a process of its own."""
    pipe = subprocess.PIPE
    with WarmProgram(
        [sys.executable, "-m", *arguments], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-2000:]
    return output


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """``python -m ARGUMENTS`` in this process, which has imported most of it; for commands without processes."""

    def run_here(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["python", *arguments[1:]])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = None
        try:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        assert not code, printed.err
        return printed.out

    return run_here


@pytest.mark.parametrize("module", MODULES)
def test_every_command_explains_itself(run_here, module: str) -> None:
    printed = run_here(module, "--help")
    assert "Usage" in printed
    assert "--help" in printed


def test_every_command_is_listed(run_here) -> None:
    printed = run_here("bench")
    for command, line in COMMANDS.items():
        assert f"python -m {command} " in printed
        assert line in printed
    runnable = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for file in (ROOT / "bench").rglob("*.py")
        if '__name__ == "__main__"' in file.read_text()
    }
    # Another Python runs vLLM's side, by its path.
    assert runnable - {"bench", "bench.vllm.peer"} == set(MODULES)


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_commands_that_exist(page: str) -> None:
    named = set(re.findall(r"python -m (bench[\w.]*)", (ROOT / page).read_text()))
    assert named <= {*MODULES, "bench"}, "a command that does not exist"
    if page == "docs/benchmarks.md":
        assert named >= set(MODULES)


def test_proxy_latency() -> None:
    printed = run("bench.proxy_latency", "--requests", "1")
    rows = [line.rsplit(maxsplit=4) for line in printed.splitlines() if " token ids" in line]
    assert [name.strip() for name, *_ in rows][-1] == "32,000 token ids"
    assert all(float(through) > 0 for _, _, through, _, _ in rows)


def test_decode_steps() -> None:
    printed = run("bench.decode_steps", "--case", "2:20", "--tokens", "8", "--threads", "1")
    [row] = [line.split() for line in printed.splitlines() if line.split()[:2] == ["2", "20"]]
    assert all(float(figure.replace(",", "")) > 0 for figure in row[2:])


def test_admission() -> None:
    small = ("--tokens", "4000", "--concurrency", "8", "--batch", "4", "--turns", "1", "--pp", "2")
    printed = run("bench.admission", *small)
    for step in ("look-up: two walks", "look-up: hint index", "discovery: hint index", "lease", "commit"):
        assert step in printed
    assert "rounds per admitted request: hint index" in printed


def test_trace(tmp_path: Path) -> None:
    """Two conversations of two turns each: the second turn reuses the first."""
    trace, timeline = tmp_path / "trace.jsonl", tmp_path / "timeline.json"
    lines = [
        {"timestamp": 4000 * turn, "input_length": 512 * (turn + 2), "output_length": 1, "hash_ids": ids}
        for turn in range(2)
        for ids in ([1, 2, 3][: turn + 2], [4, 5, 6][: turn + 2])
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    printed = run(
        "bench.trace", str(trace), "--policy", "lockstep", "--policy", "mpu", "--timeline", str(timeline)
    )
    assert "lockstep" in printed
    assert "mpu" in printed
    assert printed.count("40.0%") == 3, "what could be reused, and what each policy reused"
    assert json.loads(timeline.read_text())["traceEvents"]
    picture = tmp_path / "timeline.png"
    run("bench.timeline_picture", str(picture), "--trace", str(timeline), "--what", "virtual devices")
    assert picture.read_bytes().startswith(b"\x89PNG")
    trace.write_text('{"traceEvents": []}')
    with pytest.raises(AssertionError, match="nothing was computed"):
        run("bench.timeline_picture", str(picture), "--trace", str(trace))


def test_order_shows_that_prefixes_which_do_not_fit_are_reused_more_and_nobody_is_passed_beyond_the_bound(
    run_here,
) -> None:
    printed = run_here(
        "bench.order", "--clients", "24", "--pool", "100000", "--requests", "1", "--least", "96", "--charge", "0",
        "--bound", "40000",
    )  # fmt: skip
    [fcfs, prefix] = [
        line.split() for line in printed.splitlines() if line.split()[:1] in (["fcfs"], ["prefix"])
    ]
    assert float(prefix[5].rstrip("%")) > float(fcfs[5].rstrip("%"))
    assert 0 < int(prefix[10].replace(",", "")) <= 40_000


def test_a_cell_of_the_paper_in_a_worker_process_and_its_reports(tmp_path: Path, run_here) -> None:
    """The worker is a process that imports what it runs: only a real one shows whether it can."""
    kept = tmp_path / "paper.json"
    cell = ("--model", "minimax-m2.7-pp4", "--policy", "lease", "--only", "short cold c=8")
    printed = run("bench.paper", *cell, "--kv-tokens", "2000000", "--processes", "1", "--out", str(kept))
    [row] = json.loads(kept.read_text())
    assert (row["family"], row["concurrency"]) == ("short cold", 8)
    assert "Verdict on 1 measurements of 1 cells" in printed
    assert f"{row['date']}" in run_here("bench.paper.report", str(kept))
    assert "0 of 1 throughputs moved" in run_here("bench.paper.compare", str(kept), str(kept))


def test_kept_results_are_readable(run_here) -> None:
    printed = run_here("bench.paper.report", "docs/results/paper.json")
    assert "Verdict on 408 measurements of 68 cells" in printed
    assert "MISSED" not in printed


def test_bursts_and_their_report(tmp_path: Path, run_here) -> None:
    kept = tmp_path / "bursts.json"
    run_here("bench.bursts", "--stages", "1", "--out", str(kept), "--only", "burst 8 of 1 x 1K")
    rows = json.loads(kept.read_text())
    assert [(row["clock"], row["making"]) for row in rows] == [("virtual", True), ("virtual", False)]
    assert all(row["computed"] == row["least"] for row in rows if row["making"])
    assert "1 cells: computed at most 1.000" in run_here("bench.bursts.report", str(kept))


def test_bursts_that_fit_in_no_pool_are_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="17152 tokens hold no prompt of 32768"):
        measure_virtual(VIRTUAL_CELLS[0], 1, True, 17_152)


@pytest.mark.soak
def test_bursts_on_real_ranks(tmp_path: Path) -> None:
    kept = tmp_path / "bursts.json"
    run("bench.bursts", "--stages", "1", "--out", str(kept), "--only", "burst 8 of 1 x 1K", "--real")
    rows = json.loads(kept.read_text())
    assert [(row["clock"], row["making"]) for row in rows] == [("real", True), ("real", False)]
    assert all(row["computed"] == row["least"] for row in rows if row["making"])


def test_slow_rounds(run_here) -> None:
    few = ("--requests", "16", "--kv-tokens", "1000000", "--cell", "glm-5.2-pp4 4K suffix c=8")
    printed = run_here("bench.slow_rounds", *few, "--delay", "0", "--delay", "0.064", "--policy", "lockstep")
    shares = [
        float(line.split()[1].rstrip("%"))
        for line in printed.splitlines()
        if line.split()[:1] in (["0"], ["64"])
    ]
    assert shares[0] > shares[1], "slower rounds cost throughput"


def test_planners(run_here) -> None:
    printed = run_here(
        "bench.planners", "--only", "reuse 131K c=8", "--planner", "greedy", "--planner", "mpu"
    )
    assert "kimi-k3-pp8 reuse 131K c=8" in printed


def test_cost_models(run_here) -> None:
    printed = run_here("bench.paper.cost_models")
    assert "Kimi K3, PP8 on GB300" in printed
    assert "cold 262K c=1" in printed


def test_one_gpu_is_measured_and_so_is_a_cpu(run_here, tmp_path: Path) -> None:
    kept, cell, cold = tmp_path / "kept.json", "reuse:96:2:4", "cold:96:2:4"
    sizes = ["--wave-tokens", "64", "--block", "16", "--kv-tokens", "2048", "--stages", "2"]
    printed = run_here(
        "bench.gpu",
        *("--device", "cpu", "--shape", "tiny", "--cell", cell, "--cell", cold, *sizes, "--out", str(kept)),
    )
    assert "TFLOP/s in dense bfloat16 matrix products" in printed
    found = json.loads(kept.read_text())
    assert found["card"] == "a CPU"
    rows = {row["side"]: row for row in found["rows"] if row["cell"] == cell}
    assert rows.keys() == {"P=2", "transformers"}
    sides = [row["side"] for row in found["rows"] if row["cell"] == cold]
    assert sides == ["P=2", "2 of P=1", "transformers"]
    for row in found["rows"]:
        assert row["shape"] == "tiny"
        assert row["tokens_per_second"] > 0
        assert 0 < row["utilisation"] < 1
    assert rows["P=2"]["reused"] > 0.5
    assert "upstream" in rows["P=2"]["idle"]
    assert "no_requests" not in rows["P=2"]["idle"], "the ranks wait before and after as well"
