"""The private directory of a run, gone when the run is, even if the launcher is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.liveness.deaths import VARIABLE, DeathNotes
from wavepp_worker.serve import guard
from wavepp_worker.serve.orphans import adopt, collect

STATE_FILE = "state.json"
# In bytes: the temporary directories of processes are in it, and have to be short enough for sockets in them.
_LONGEST = 70
_PREFIX = "wavepp-serve-"
_LONGEST_BASE = _LONGEST - len(f"/{_PREFIX}12345678")


def check_run_dir(path: Path | None) -> None:
    """Refuse a directory that no run can have; makes nothing.

    Args:
        path: None for the one that a run makes itself.

    Raises:
        ConfigError: it exists with something in it, is a file, cannot be made, or its path is too long.
    """
    if path is None:
        _base()
        return
    path = path.absolute()
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(
            f"--run-dir: {path} is longer than {_LONGEST} bytes, too long for the sockets in it"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--run-dir: {path} is a file; give a directory that is new or empty")
    try:
        busy = path.exists() and any(path.iterdir())
    except OSError as error:
        raise ConfigError(f"--run-dir: {error}") from error
    if busy and (graph := _runs_in(path)) is not None:
        raise ConfigError(
            f"--run-dir: {path} is that of {graph}, which is running; stop that one first, or give another directory"
        )
    if busy:
        raise ConfigError(f"--run-dir: {path} is not empty, and would be removed at the end")
    parent = next(each for each in (path, *path.parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(
            f"--run-dir: {path} cannot be made, as {parent} is no directory that can be written to"
        )


def _runs_in(path: Path) -> str | None:
    """The graph whose launcher has this directory; None if none lives."""
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        os.kill(int(state["pid"]), 0)
        return f"{state['graph']} (launcher {state['pid']})"
    except PermissionError:
        return "another user's graph"
    except (OSError, ValueError, KeyError, TypeError):
        return None


class RunDir:
    """Holds the discovery store, the processes' temporary files and ``state.json``."""

    def __init__(self, path: Path | None = None) -> None:
        """Make the directory, readable by this user alone, and start its guard.

        Args:
            path: where; by default a new one under ``$XDG_RUNTIME_DIR`` or the temporary directory.

        Raises:
            ConfigError: it exists with something in it, cannot be made, or its path is too long.
        """
        self.path = self._make(path)
        for name in ("store", "tmp"):
            (self.path / name).mkdir(mode=0o700)
        self._deaths = self.path / "deaths.json"
        adopt()
        # The lifeline: the kernel closes our end however we die.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def store(self) -> Path:
        """The root of Dynamo's file discovery."""
        return self.path / "store"

    def scratch(self, port: int) -> Path:
        """The temporary directory of the process with this port; it makes and removes it."""
        return self.path / "tmp" / str(port)

    def environment(self) -> dict[str, str]:
        """What every process of the run has in its environment."""
        return {guard.MARK: str(self.path), VARIABLE: str(self._deaths)}

    def death_notes(self) -> DeathNotes:
        """Where processes of the run find out who has died."""
        return DeathNotes(self._deaths)

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace ``state.json`` at once."""
        scratch = self.path / f".{STATE_FILE}"
        scratch.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        scratch.replace(self.path / STATE_FILE)

    def close(self) -> list[int]:
        """Kill what is left of the run, remove the directory and let the guard go; idempotent.

        Returns:
            Processes that would not die.
        """
        left = guard.clean(str(self.path))
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        collect(None, seconds=0)
        try:
            self._guard.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        return left

    @staticmethod
    def _make(path: Path | None) -> Path:
        try:
            if path is None:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
            path = path.absolute()
            check_run_dir(path)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            return path
        except OSError as error:
            raise ConfigError(f"--run-dir: {error}") from error


def _base() -> str:
    """Where directories are made that nobody has chosen."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.access(base, os.W_OK) and len(os.fsencode(base)) <= _LONGEST_BASE:
        return base
    try:
        base = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError(
            f"TMPDIR: {error.strerror}; set TMPDIR to a directory that can be written to, or give --run-dir"
        ) from error
    if len(os.fsencode(base)) > _LONGEST_BASE:
        raise ConfigError(
            f"TMPDIR: {base} is longer than {_LONGEST_BASE} bytes, too long for the sockets of a run; set TMPDIR to "
            f"a shorter directory, such as /tmp, or give --run-dir one of at most {_LONGEST} bytes"
        )
    return base
