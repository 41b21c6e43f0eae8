"""What the comparison makes of vLLM's answers, and whose CPU time it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench.vllm import others
from bench.vllm.__main__ import _settings
from bench.vllm.sides import Setting, run_theirs

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
