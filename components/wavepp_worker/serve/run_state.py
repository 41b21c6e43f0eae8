"""What the launchers of this user say of their runs."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from wavepp_worker.serve import guard
from wavepp_worker.serve.run_dir import STATE_FILE
from wavepp_worker.standard_output import printable

MOST_BYTES = 16 << 20
"""Of what a launcher says."""


class _Engine(msgspec.Struct):
    role: str


class _About(msgspec.Struct):
    engines: list[_Engine] = []


class _Process(msgspec.Struct):
    """What commands need of a process."""

    service: str
    replica: int
    kind: str
    url: str | None
    pid: int | None
    ready: bool
    restarts: int
    about: _About | None = None


class _Planner(msgspec.Struct):
    decision: Any
    workers: dict[str, int]
    shortfall: list[str]


class _State(msgspec.Struct):
    """The same of a run."""

    graph: str
    pid: int
    ready: bool
    base_url: str | None
    model: str | None
    processes: list[_Process]
    notes: list[str] = []
    planner: _Planner | None = None


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
        state: Any = _printable(json.loads(_text(run_dir / STATE_FILE)))
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get("processes"), list) else None


def says_enough(state: dict[str, Any]) -> bool:
    """Whether a launcher says what commands need to know."""
    try:
        msgspec.convert(state, _State)
    except msgspec.ValidationError:
        return False
    return True


def _text(path: Path) -> str:
    """Of a file, and of nothing that would be waited for, as of a pipe.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no file")
        return file.read(MOST_BYTES).decode()


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value
