"""The command: what it shows, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.compute_threads import SPINS
from wavepp_worker.liveness.stop_times import FRONTEND_VARIABLE, GRACE_VARIABLE, WORKER_VARIABLE
from wavepp_worker.serve.cli import app
from wavepp_worker.serve.environment import PROBES

from tests.support.graph_process import REPOSITORY, SERVE

pytestmark = pytest.mark.usefixtures("in_the_repository")


def test_dry_run_shows_the_merged_configuration_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("PrefillWorker:\n  pp: 4\n  ServiceArgs: {workers: 3, envs: {A: one}}\n")
    words = ["serve", "graphs:disagg_wavepp", "-f", str(file), "--PrefillWorker.ServiceArgs.envs.B=two words"]
    result = typer.testing.CliRunner().invoke(
        app, [*words, "--dry-run", "--PrefillWorker.partition=10,8,6,6"]
    )
    assert result.exit_code == 0, result.output
    assert result.output.count("# PrefillWorker:") == 3
    assert "A=one B='two words'" in result.output
    assert "--partition=10,8,6,6" in result.output
    assert "--pp=4" in result.output
    assert "DYN_TCP_RPC_HOST=127.0.0.1" in result.output


def test_dry_run_shows_how_threads_wait_unless_the_user_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["serve", "graphs:disagg_wavepp", "--dry-run"]
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert f"\nGOMP_SPINCOUNT={SPINS}\n" in typer.testing.CliRunner().invoke(app, words).output
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in typer.testing.CliRunner().invoke(app, words).output


def test_a_worker_has_the_time_to_stop_that_the_user_or_else_dynamo_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def given(*words: str) -> dict[str, str]:
        result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:agg_wavepp", "--dry-run", *words])
        assert result.exit_code == 0, result.output
        return dict(re.findall(r"^(DYN_\w*GRACEFUL\w*)=(\S+)$", result.output, re.M))

    assert given() == {}, "not the grace either"
    monkeypatch.setenv(WORKER_VARIABLE, "60")
    assert given() == {}, "it is passed on"
    assert given("--stop-timeout", "30") == {WORKER_VARIABLE: "35", FRONTEND_VARIABLE: "30"}
    assert given("--stop-timeout", "3") == {WORKER_VARIABLE: "10", FRONTEND_VARIABLE: "3"}
    monkeypatch.setenv(GRACE_VARIABLE, "1")
    assert given("--stop-timeout", "3") == {WORKER_VARIABLE: "8", FRONTEND_VARIABLE: "3"}


def test_dry_run_shows_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["serve", "graphs:agg_wavepp", "--dry-run"]
    assert f"\nDYN_LOG={PROBES},info\n" in typer.testing.CliRunner().invoke(app, words).output
    monkeypatch.setenv("DYN_LOG", "warn")
    assert f"\nDYN_LOG={PROBES},warn\n" in typer.testing.CliRunner().invoke(app, words).output


@pytest.mark.parametrize("option", ["--start-timeout", "--health-timeout"])
def test_a_limit_that_nothing_could_keep_is_refused(option: str) -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:agg_wavepp", "--dry-run", f"{option}=0"])
    assert result.exit_code == 2
    assert re.search(
        rf"{option}.*(range x>=1|greater than or equal to 1)", re.sub(r"[│\s]+", " ", result.output)
    )


def test_an_error_is_a_json_object_where_lines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_LOGGING_JSONL", "1")
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:nothing", "--dry-run"])
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    said = json.loads(line)
    assert said["message"].startswith("graph graphs:nothing: ")
    assert (said["level"], said["process"]) == ("ERROR", "dynamo serve")
    assert said["time"].endswith("Z")


def test_without_a_graph_those_that_there_are_are_listed() -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 0, result.output
    assert "  graphs:agg_wavepp\n" in result.output
    assert "  graphs:disagg_wavepp\n" in result.output
    assert "Prefill by two pipeline-parallel replicas" in result.output


def test_versions_of_what_matters() -> None:
    result = typer.testing.CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0, result.output
    assert re.match(r"wavepp-worker \d\S* \(ai-dynamo 1\.\d\S*, torch 2\..*\)\n$", result.output)


def example_graph() -> str:
    """The graph of one's own that docs/graphs.md shows."""
    [first, *_] = re.findall(
        r"^```python\n(.*?)^```", (REPOSITORY / "docs/graphs.md").read_text(), re.M | re.S
    )
    return first


def test_the_documented_graph_of_ones_own_is_short_and_starts_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(example_graph().rstrip().splitlines()) <= 15
    (tmp_path / "mygraph.py").write_text(example_graph())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    for directory, target in [
        ("elsewhere", "../mygraph.py"),
        (".", "mygraph.py"),
        (".", "mygraph:long_prompts"),
    ]:
        monkeypatch.chdir(tmp_path / directory)
        result = typer.testing.CliRunner().invoke(app, ["serve", target, "--dry-run"])
        assert result.exit_code == 0, result.output
        assert re.findall(r"^# (\w+:\d)$", result.output, re.M) == [
            "Frontend:0",
            "DecodeWorker:0",
            "DecodeWorker:1",
            "PrefillWorker:0",
        ]
        assert "--pp=3 --max-num-batched-tokens=1024" in result.output
        assert (f"PYTHONPATH={tmp_path}" in result.output) == (directory == "elsewhere")


def test_a_service_without_a_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.py").write_text(
        "from wavepp_worker.serve import Graph, Service\ng = Graph('g', (Service('A', 'no_such.thing'),))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = typer.testing.CliRunner().invoke(app, ["serve", str(tmp_path / "g.py"), "--dry-run"])
    assert result.exit_code == 2
    assert "error: A: there is no module no_such.thing" in result.output


def test_replicas_share_neither_a_disk_tier_nor_a_timeline() -> None:
    words = [
        "--PrefillWorker.disk_path=/kv",
        "--PrefillWorker.timeline=t.json",
        "--PrefillWorker.host=127.0.0.{replica}",
        "--PrefillWorker.disk_kv_tokens=64",
    ]
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-run", *words])
    assert result.exit_code == 0, result.output
    for replica in (0, 1):
        own = f"--disk-path=/kv/replica-{replica} --timeline=t-{replica}.json --host=127.0.0.{replica}"
        assert result.output.count(own) == 1


def test_bad_key_ends_the_command_with_one_sentence() -> None:
    done = subprocess.run(
        [*SERVE, "graphs:disagg_wavepp", "--PrefillWorker.pp=0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: --PrefillWorker.pp: should be at least 1")
    assert done.stderr.count("\n") == 1


def test_a_dry_run_refuses_a_temporary_directory_that_a_start_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    words = ["serve", "graphs:agg_wavepp"]
    for more in ([], ["--dry-run"]):
        result = typer.testing.CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == 2, result.output
        assert result.output.startswith("error: TMPDIR: ")
    result = typer.testing.CliRunner().invoke(app, [*words, "--dry-run", "--run-dir", "/tmp/wavepp-unmade"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("key", ["namespace", "served_model_name"])
def test_a_name_that_no_file_can_have_is_refused(key: str) -> None:
    words = ["serve", "graphs:agg_wavepp", "--dry-run", f"--Common.{key}={'n' * 300}"]
    result = typer.testing.CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert result.output.startswith(f"error: --Common.{key}: ")


def test_misspelt_option_is_not_taken_for_an_override() -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-rum"])
    assert result.exit_code == 2


def test_a_setting_without_its_service_is_told_how_to_be_written() -> None:
    for words, said in (
        (["--pp=3"], "--pp: no such option; a setting of a service is written --Service.pp=3, such as --Pre"),
        (["--pp", "3"], "--pp: no such option; a setting of a service is written --Service.pp=VALUE, such"),
        (
            ["--ppp=3"],
            "--ppp: no such option; a setting of a service is written --Service.pp=3, such as --Pre",
        ),
        (["pp=3"], "pp: no such option; a setting of a service is written --Service.pp=3, such as --Prefill"),
    ):
        result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-run", *words])
        assert result.exit_code == 2
        assert result.output.startswith(f"error: {said}")


def test_launcher_does_not_load_torch() -> None:
    words = ["serve", "graphs:disagg_wavepp", "--dry-run"]
    code = (
        "import sys; from typer.testing import CliRunner; from wavepp_worker.serve.cli import app; "
        f"assert CliRunner().invoke(app, {words!r}).exit_code == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_serve_prints_versions_too() -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve", "--version"])
    assert result.exit_code == 0
    assert result.output.startswith("wavepp-worker ")
