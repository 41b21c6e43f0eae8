"""A warm process is in all that can be seen from outside the one that was asked for."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.warm_processes import Nursery, WarmPopen, WarmProgram

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
print(Path("/proc/self/environ").read_text().rstrip("\\0").split("\\0"))
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
    arguments, warm, environment, directory, parent, files, command, blocked, shown, line, *_ = (
        said.decode().splitlines()
    )
    assert (arguments, warm, environment) == ("['7']", "True", "{'ONLY': 'this'}")
    assert (directory, parent, line) == (str(tmp_path), str(os.getpid()), "of its own")
    # Three standard files, and the one that lists them.
    assert files == "4"
    assert command == str([sys.executable, "-m", "program", "7"])
    assert "SIGTERM" in blocked
    assert shown == "['ONLY=this']"


STARTS_ANOTHER = """
import asyncio, os, subprocess, sys

async def other() -> None:
    command = [sys.executable, "-m", "program", "3"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env={"HIS": "own"}, cwd="/", stdin=pipe, stdout=pipe, start_new_session=True
    )
    said, _ = await process.communicate(b"from above\\n")
    print(said.decode(), process.returncode, os.getpid(), sep="\\n")

asyncio.run(other())
print(subprocess.run(["echo", "no Python"], capture_output=True, text=True).stdout, flush=True)
sys.stdin.read()
"""


def test_what_a_warm_program_starts_is_warm_and_no_nursery_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "starts_another.py").write_text(STARTS_ANOTHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    process = WarmProgram(
        [sys.executable, "-m", "starts_another"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        lines = [
            *itertools.takewhile(
                lambda line: line != "no Python", map(str.strip, map(bytes.decode, process.stdout))
            )
        ]
        (nursery,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        shown = Path(f"/proc/{nursery}/environ").read_bytes().strip(b"\0")
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    arguments, warm, environment, directory, parent, *_, line, code, pid = filter(None, lines)
    assert (arguments, warm, environment, directory) == ("['3']", "True", "{'HIS': 'own'}", "/")
    assert (parent, pid, line, code) == (str(process.pid), str(process.pid), "from above", "3")
    assert shown == b"", "it is not counted as the program's"
    deadline = time.monotonic() + 30
    while is_running(int(nursery)):
        assert time.monotonic() < deadline, "its nursery is still there"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Not so of one that is dead and waited for by nobody yet: it has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() != ""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_leads_its_session_and_shows_its_environment_once_it_is_there() -> None:
    """Whoever has just started it may stop it and its children, or look whose it is."""
    process = WarmPopen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"],
        env={"WHOSE": "ours"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert os.getpgid(process.pid) == process.pid
        assert Path(f"/proc/{process.pid}/environ").read_text().rstrip("\0") == "WHOSE=ours"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def test_a_nursery_that_is_gone_is_said_to_be_and_the_next_call_starts_another() -> None:
    nursery = Nursery()
    nursery._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery._process = subprocess.Popen(["true"])
    command = [sys.executable, "-m", "http.server"]
    with theirs, ThreadPoolExecutor(1) as pool:
        forking = pool.submit(nursery.fork, command, {}, (0, 1, 2))
        # What it was asked, and nothing answered.
        theirs.recv(1)
        theirs.recv(1 << 18)
        theirs.close()
        with pytest.raises(RuntimeError, match="could not start"):
            forking.result(30)
    assert nursery._socket is None


def test_it_is_killed_and_waited_for_like_any_child() -> None:
    process = WarmPopen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], stdin=subprocess.PIPE
    )
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
