from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.liveness import process_state as module
from wavepp_worker.liveness.process_state import exit_reason, oom_kills, process_state

from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (0, "ended with exit code 0"),
        (
            -signal.SIGSEGV,
            "was ended by SIGSEGV (it touched memory that is not its own: a fault in native code)",
        ),
        (-signal.SIGTERM, "was ended by SIGTERM"),
        (-63, "was ended by signal 63"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert exit_reason(code) == words


def test_a_kill_for_want_of_memory_is_told_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CGROUPS", tmp_path)
    assert oom_kills() is None
    assert "by somebody, or by the kernel" in exit_reason(-signal.SIGKILL, None)
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 2\n")
    assert oom_kills() == 2
    assert "by somebody, or by the kernel" in exit_reason(-signal.SIGKILL, oom_kills())
    before = oom_kills()
    events.write_text("low 0\noom 5\noom_kill 3\n")
    assert exit_reason(-signal.SIGKILL, before).startswith("was ended by SIGKILL (out of memory")
    events.unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    assert oom_kills() == 7


def test_what_a_process_does_while_it_is_silent() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        wait_until(lambda: process_state(process.pid).startswith("sleeps"))
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: process_state(process.pid).startswith("is stopped by a signal"))
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) == "is gone"
