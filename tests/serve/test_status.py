from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.serve import guard
from wavepp_worker.serve import status as status_command
from wavepp_worker.serve.run_state import run_dirs

from tests.support.run_states import write_state


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Of a run with one process, which is not ready."""
    directory = tmp_path / "run"
    directory.mkdir()
    entry = {"service": "Worker", "url": "http://127.0.0.1:20001", "ready": False, "about": None}
    write_state(directory, [entry], graph="mine")
    environment = {**os.environ, guard.MARK: str(directory)}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE
    ) as process:
        yield directory
        process.kill()


def status(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", *words])
    return result.exit_code, result.output


def test_running_graphs_are_found_by_their_processes(run_dir: Path) -> None:
    assert run_dir in run_dirs()
    code, text = status()
    assert code == 0
    assert (
        f"mine (Worker) not ready: tiny at http://127.0.0.1:8000  (launcher {os.getpid()}, {run_dir})" in text
    )
    assert "  Worker:0  http://127.0.0.1:20001  pid 7, not ready" in text


def test_workers_of_all_graphs_are_asked_at_once(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that does not answer would else cost two seconds more."""
    state = json.loads((run_dir / "state.json").read_text())
    monkeypatch.setattr(status_command, "all_runs", lambda _: [(run_dir, state)] * 3)
    asked: list[str] = []
    beside: list[int] = []

    async def metrics(url: str) -> str:
        asked.append(url)
        await asyncio.sleep(0.05)
        beside.append(len(asked))
        return ""

    monkeypatch.setattr(status_command, "metrics", metrics)
    code, text = status()
    assert (code, text.count("launcher "), beside) == (0, 3, [3, 3, 3])


def test_one_graph_is_found_by_its_directory(run_dir: Path) -> None:
    code, text = status("--run-dir", str(run_dir))
    assert code == 0
    assert text.startswith("mine (Worker) not ready")
    assert text.count("launcher") == 1


def test_what_a_worker_does_is_asked_of_it(run_dir: Path) -> None:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = b"wavepp_running_requests 2.0\n" if self.path == "/metrics" else b""
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state = json.loads((run_dir / "state.json").read_text())
        state["processes"][0]["url"] = f"http://127.0.0.1:{server.server_port}"
        (run_dir / "state.json").write_text(json.dumps(state))
        assert "prefill now: 2 running, 0 waiting" in status("--run-dir", str(run_dir))[1]
        server.shutdown()


def test_a_directory_without_a_run_and_one_of_another_version(run_dir: Path) -> None:
    code, text = status("--run-dir", str(run_dir.parent))
    assert code == 1
    assert f"no graph runs in {run_dir.parent}; start one with dynamo serve" in text
    (run_dir / "state.json").write_text(json.dumps({"graph": "old", "processes": [{"service": "Worker"}]}))
    assert status("--run-dir", str(run_dir))[1].startswith("old, of another version of this program")


def test_of_a_launcher_that_is_gone_that_is_said(run_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    state = json.loads((run_dir / "state.json").read_text())
    (run_dir / "state.json").write_text(json.dumps({**state, "pid": process.pid}))
    code, text = status("--run-dir", str(run_dir))
    assert code == 0
    assert text.startswith(f"mine does not run: its launcher {process.pid} is gone, and no worker answers")
    assert "ready" not in text


def test_a_terminal_obeys_no_state(run_dir: Path) -> None:
    state = json.loads((run_dir / "state.json").read_text())
    state["graph"] = state["processes"][0]["service"] = "\x1b]0;mine\x07"
    (run_dir / "state.json").write_text(json.dumps(state))
    _, text = status("--run-dir", str(run_dir))
    assert "\x1b" not in text
    assert "?]0;mine?" in text


def test_a_worker_of_another_version_is_no_traceback(run_dir: Path) -> None:
    state = json.loads((run_dir / "state.json").read_text())
    state["processes"][0]["about"] = {"engines": [{"role": "prefill"}]}
    (run_dir / "state.json").write_text(json.dumps(state))
    assert status("--run-dir", str(run_dir))[1].startswith("mine, of another version of this program")
