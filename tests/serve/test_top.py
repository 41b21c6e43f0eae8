"""``wavepp top`` of runs whose workers only show metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.serve import top

from tests.support.run_states import write_state


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a run with a worker that computes another wave and eight tokens each time it is asked."""
    monkeypatch.setattr(top, "SHARE_SECONDS", 0.05)
    asked = []

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            text = (
                'wavepp_rank_busy_seconds_total{rank="0"} 1.0\n'
                f"wavepp_running_requests 6.0\nwavepp_waves_total {len(asked)}\n"
                f"wavepp_prompt_tokens_total {8 * len(asked)}\nwavepp_reused_tokens_total {2 * len(asked)}\n"
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        worker = {"service": "Prefill", "replica": 3, "url": url, "about": None}
        broken = {**worker, "replica": 4, "url": "http://127.0.0.1:1"}
        decode = {**broken, "service": "Decode", "about": {"engines": [{"role": "decode"}]}}
        frontend = {**worker, "service": "Frontend", "kind": "frontend"}
        odd = {**broken, "service": "Odd[/b][bold]", "replica": 5}
        write_state(tmp_path, [frontend, worker, broken, odd, decode], graph="mine", pid=6)
        yield tmp_path
        server.shutdown()


def test_one_frame_has_every_worker_and_rates(run_dir: Path) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--run-dir", str(run_dir)])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert lines[0] == ["mine:", "tiny", "(launcher", "6)"]
    assert lines[2][:4] == ["Prefill:3", "0", "0", "%"]
    assert "25" in lines[2], "a quarter of the tokens was reused"
    assert lines[3] == ["Prefill:4", "does", "not", "answer"]
    assert lines[6] == ["Decode:4", "does", "not", "answer"]
    assert "Frontend" not in result.stdout
    assert "Odd[/b][bold]:5" in result.output, "names are no markup"


def test_what_is_no_terminal_gets_one_frame(run_dir: Path) -> None:
    assert CliRunner().invoke(app, ["top", "--run-dir", str(run_dir)]).stdout.count("Prefill:3") == 1


def live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output counts as a terminal."""
    monkeypatch.setattr(top, "Console", lambda **options: Console(force_terminal=True, width=200))
    monkeypatch.setattr(top, "REFRESH_SECONDS", 0.01)


def test_a_graph_that_ends_meanwhile_is_said_in_a_sentence(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch)
    look, frames = top.Watch.look, []

    async def last_look(watch: top.Watch) -> object:
        if len(frames) == 3:
            (run_dir / "state.json").unlink()
        frames.append(await look(watch))
        return frames[-1]

    monkeypatch.setattr(top.Watch, "look", last_look)
    result = CliRunner().invoke(app, ["top", "--run-dir", str(run_dir)])
    assert (result.exit_code, len(frames), frames[-1]) == (1, 4, None)
    assert "mine is gone: the launcher has ended" in result.stderr


def test_ctrl_c_ends_it_quietly(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(monkeypatch)

    async def interrupted(watch: top.Watch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top.Watch, "look", interrupted)
    result = CliRunner().invoke(app, ["top", "--run-dir", str(run_dir)])
    assert (result.exit_code, result.stderr) == (0, "")


def test_where_no_graph_runs_that_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--run-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no graph runs in {tmp_path}" in result.stderr
