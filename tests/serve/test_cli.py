"""The command: what it shows, and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.serve.cli import app

from tests.support.graph_process import SERVE

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


def test_bad_key_ends_the_command_with_one_sentence() -> None:
    done = subprocess.run(
        [*SERVE, "graphs:disagg_wavepp", "--PrefillWorker.pp=0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: PrefillWorker.pp: should be greater than or equal to 1")
    assert done.stderr.count("\n") == 1


def test_misspelt_option_is_not_taken_for_an_override() -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-rum"])
    assert result.exit_code == 2


def test_launcher_does_not_load_torch() -> None:
    words = ["serve", "graphs:disagg_wavepp", "--dry-run"]
    code = (
        "import sys; from typer.testing import CliRunner; from wavepp_worker.serve.cli import app; "
        f"assert CliRunner().invoke(app, {words!r}).exit_code == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
