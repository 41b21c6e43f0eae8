"""A warm process is in all that can be seen from outside the one that was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm_processes import WarmPopen

PROGRAM = """
import os, signal, sys
from pathlib import Path

print(sys.argv[1:])
print("torch" in sys.modules)
print(dict(os.environ))
print(os.getcwd())
print(os.getppid())
print(len(os.listdir("/proc/self/fd")))
print(Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"))
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(sys.stdin.readline())
sys.exit(int(sys.argv[1]))
"""


def test_it_is_as_if_it_had_been_spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        process = WarmPopen(
            [sys.executable, "-m", "program", "7"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"ONLY": "this"},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    said, _ = process.communicate(b"of its own\n", timeout=60)
    assert process.returncode == 7
    arguments, warm, environment, directory, parent, files, command, blocked, line, *_ = (
        said.decode().splitlines()
    )
    assert (arguments, warm, environment) == ("['7']", "True", "{'ONLY': 'this'}")
    assert (directory, parent, line) == (str(tmp_path), str(os.getpid()), "of its own")
    # Three standard files, and the one that lists them.
    assert files == "4"
    assert command == str([sys.executable, "-m", "program", "7"])
    assert "SIGTERM" in blocked


def test_it_is_killed_and_waited_for_like_any_child() -> None:
    process = WarmPopen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], stdin=subprocess.PIPE
    )
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
