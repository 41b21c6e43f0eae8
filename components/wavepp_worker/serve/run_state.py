"""What the launchers of this user say of their runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from wavepp_worker.serve import guard
from wavepp_worker.serve.run_dir import STATE_FILE


class _Process(msgspec.Struct):
    """What commands need of a process."""

    service: str
    replica: int
    kind: str
    url: str | None
    pid: int | None
    ready: bool
    restarts: int


class _State(msgspec.Struct):
    """The same of a run."""

    graph: str
    pid: int
    ready: bool
    base_url: str | None
    model: str | None
    processes: list[_Process]


def run_dirs() -> list[Path]:
    """The directories of all runs of this user.

    Root may look at everybody's processes, but what another user's say of where a run is, and that of whom to ask for
    what, is not for root to follow.
    """
    return sorted({Path(directory) for pid, directory in guard.processes() if _is_own(pid)})


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def read_state(run_dir: Path) -> dict[str, Any] | None:
    """What a launcher says of its run, with ``?`` for what a terminal would obey; None if there is none."""
    try:
        state = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or not isinstance(state.get("processes"), list):
        return None
    cleaned: dict[str, Any] = _printable(state)
    return cleaned


def of_this_version(state: dict[str, Any]) -> bool:
    """Whether a launcher says what commands need to know."""
    try:
        msgspec.convert(state, _State)
    except msgspec.ValidationError:
        return False
    return True


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(char if char.isprintable() else "?" for char in value)
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value
