"""What the comparison makes of vLLM's answers, and whose CPU time it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench.vllm import others
from bench.vllm.__main__ import _print, _settings, main
from bench.vllm.sides import Figures, Setting, run_theirs

CELLS = ("cold:8:1:2", "cold:16:1:2")
ROW = '{"cell": "cold:8:1:2", "seconds": 2, "reused": 4, "completion": [1, 1], "others": 0.25}'


def test_cells_that_vllm_answered_are_kept_if_it_fails_later(tmp_path: Path) -> None:
    peer = tmp_path / "python"
    peer.write_text(f"#!/bin/sh\necho '{ROW}'\necho out of luck >&2\nexit 3\n")
    peer.chmod(0o755)
    answers = run_theirs(peer, Setting(tmp_path, 100, 7, 1, 64, 32, 1024), CELLS)
    cell, figures = next(answers)
    assert (cell, figures.tokens_per_second, figures.requests_per_second) == (CELLS[0], 8, 1)
    assert (figures.reused, figures.others) == (0.25, 0.25)
    with pytest.raises(
        RuntimeError, match=r"ended with 3 before it had answered \['cold:16:1:2'\]:\nout of luck"
    ):
        next(answers)


def test_what_children_compute_is_not_others() -> None:
    before = others._own_seconds()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert others._own_seconds() - before > 0.25


def test_a_setting_has_stages_and_tokens() -> None:
    assert _settings(["2:512", "1:2048"], "--ours") == [(2, 512), (1, 2048)]
    for word in ("2", "2:", "0:512", "two:512"):
        with pytest.raises(typer.BadParameter, match="like 2:512"):
            _settings([word], "--ours")


def test_without_vllm_ours_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.BadParameter, match="needs --vllm"):
        main(vllm=None, theirs=["1:2048"])
    ours = Figures(1234.5, 2.5, 0.5, 0.1, 0.2, 0.0)
    _print({CELLS[0]: {"ours, P=1, 64": [ours]}}, "alone")
    row = next(line for line in capsys.readouterr().out.splitlines() if CELLS[0] in line)
    assert "1,234" in row
    assert " - " in row


def test_the_share_is_of_the_best_of_vllms_settings(capsys: pytest.CaptureFixture[str]) -> None:
    sides = {"ours": 300.0, "vLLM, P=1": 100.0, "vLLM, P=2": 200.0}
    _print({CELLS[0]: {side: [Figures(speed, 1, 0, 0, 0, 0)] for side, speed in sides.items()}}, "both")
    shares = [line.split()[-6] for line in capsys.readouterr().out.splitlines() if CELLS[0] in line]
    assert shares == ["1.50", "0.50", "1.00"]
