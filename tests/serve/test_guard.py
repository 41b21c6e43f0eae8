from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wavepp_worker.serve import guard

from tests.support.waiting import wait_until

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def marked(run_dir: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(SLEEPER, env={**os.environ, guard.MARK: str(run_dir)}, start_new_session=True)
    # ``Popen`` returns in the middle of exec, when there is no environment to be seen yet.
    wait_until(lambda: str(run_dir).encode() in Path(f"/proc/{process.pid}/environ").read_bytes())
    return process


def test_what_is_left_of_a_run_goes_and_of_others_stays(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "run-2"
    run.mkdir()
    mine, others = marked(run), marked(other)
    try:
        assert guard.processes_of(str(run)) == [mine.pid]
        # Nobody collects it here, and a dead process that waits for that has no environment.
        assert guard.clean(str(run)) == []
        assert mine.wait(10) == -9
        assert others.poll() is None
        assert not run.exists()
    finally:
        for process in (mine, others):
            process.kill()
            process.wait()


def test_the_guard_cleans_when_the_launchers_end_closes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    mine = marked(run)
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(run)], stdin=subprocess.PIPE, start_new_session=True
    )
    assert watcher.stdin is not None
    watcher.stdin.close()
    assert mine.wait(10) == -9
    assert watcher.wait(10) == 0
    assert not run.exists()
