"""The commit beside a figure is that of the code, and says when the code differs from it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.common.kept import Kept, origins, read_kept, with_origin, write_kept
from bench.common.origin import Origin, origin_now

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


class Figure(Kept, frozen=True, kw_only=True):
    value: float


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    return subprocess.run(
        ["git", *who, *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "bench").mkdir(parents=True)
    (root / "bench" / "a.py").write_text("A = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_plus_where_the_code_differs_from_its_commit(code: Path) -> None:
    name = git(code, "rev-parse", "--short", "HEAD")
    assert origin_now(code).commit == name
    (code / "paper.json").write_text("[]")
    assert origin_now(code).commit == name, "what a run writes beside the code changes no figure"
    (code / "bench" / "b.py").write_text("B = 1\n")
    assert origin_now(code).commit == f"{name}+"
    git(code, "add", ".")
    git(code, "commit", "-qm", "second")
    (code / "bench" / "a.py").write_text("A = 2\n")
    assert origin_now(code).commit == git(code, "rev-parse", "--short", "HEAD") + "+"


def test_code_outside_a_repository_has_no_commit(code: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    assert origin_now(tmp_path / "bare").commit is None
    (code / "copy").mkdir()
    assert origin_now(code / "copy").commit is None, "a repository around the code is not the code's"


def test_kept_rows_say_where_they_are_from(tmp_path: Path) -> None:
    old, file = Figure(value=1.0), tmp_path / "figures.json"
    new = with_origin(Figure(value=2.0), Origin("1234567+", "2026-01-31"))
    write_kept(file, [old, new, new])
    assert read_kept(file, Figure) == [old, new, new]
    assert origins([old, new, new]) == "1 at an unrecorded commit; 2 at 1234567+, 2026-01-31"
    file.write_text('[{"value": 1.0}]')
    assert read_kept(file, Figure) == [old]
    assert read_kept(tmp_path / "none.json", Figure) == []
    assert origins([]) == "none"
