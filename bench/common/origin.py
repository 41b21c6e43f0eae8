"""Which commit a figure is of, and of which day: a figure that a later commit could change carries both."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("bench", "components", "constraints.txt", "pyproject.toml")
"""What figures depend on; a file that a run writes beside them changes nothing."""


@dataclass(frozen=True)
class Origin:
    """Where a figure comes from.

    Attributes:
        commit: short name; ends in "+" where files of ``CODE`` differ from it; None outside a repository.
        date: the day in UTC, ``2026-01-31``.
    """

    commit: str | None
    date: str

    def __str__(self) -> str:
        return f"{self.commit or 'an unknown commit'}, {self.date}"


def origin_now(root: Path = ROOT) -> Origin:
    """The commit of the code under ``root``, and today. Ask before measuring: files may change meanwhile."""
    date = datetime.now(timezone.utc).date().isoformat()
    top = _git(root, "rev-parse", "--show-toplevel")
    # A copy of the code may lie in a directory that another repository ignores.
    if top is None or Path(top).resolve() != root.resolve():
        return Origin(None, date)
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if commit and _git(root, "status", "--porcelain", "--", *CODE):
        commit += "+"
    return Origin(commit, date)


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
