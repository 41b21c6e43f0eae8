"""``wavepp control`` against workers that only answer controls."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.serve import control as module
from wavepp_worker.serve import runs

from tests.support.run_states import write_state

ANSWERS = {
    "pause": (200, {"status": "ok", "quiet": True}),
    "clear": (200, {"status": "error", "message": "no"}),
}


class Server(ThreadingHTTPServer):
    """Takes connections of all who ask at once."""

    request_queue_size = 64


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Of a run with two prefill workers and one decode worker, which is gone."""

    class Control(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = ANSWERS.get(self.path.rpartition("/")[2], (404, {"error": "Route not found"}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({**answer, "body": body}).encode())

        def log_message(self, *_: object) -> None: ...

    servers = [Server(("127.0.0.1", 0), Control) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_port}" for server in servers]
    processes: list[dict[str, Any]] = [
        {"service": "Frontend", "replica": 0, "kind": "frontend", "url": urls[0]},
        *({"service": "PrefillWorker", "replica": at, "kind": "worker", "url": urls[at]} for at in (0, 1)),
        {"service": "DecodeWorker", "replica": 0, "kind": "worker", "url": "http://127.0.0.1:9"},
    ]
    write_state(tmp_path, processes)
    yield tmp_path
    for server in servers:
        server.shutdown()
        server.server_close()


def control(run_dir: Path, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(app, ["control", *words, "--run-dir", str(run_dir)])
    answers = sorted(map(json.loads, result.stdout.splitlines()), key=lambda answer: answer["worker"])
    return result.exit_code, answers, result.stderr


def test_every_worker_of_a_service_or_one_replica_is_asked(run_dir: Path) -> None:
    code, answers, _ = control(run_dir, "pause", '{"timeout_s": 3}', "--worker", "PrefillWorker")
    assert code == 0
    assert [answer["worker"] for answer in answers] == ["PrefillWorker:0", "PrefillWorker:1"]
    assert answers[0] == {
        "worker": "PrefillWorker:0",
        "status": "ok",
        "quiet": True,
        "body": {"timeout_s": 3},
    }
    code, answers, _ = control(run_dir, "pause", "--worker", "PrefillWorker:1")
    assert (code, [answer["worker"] for answer in answers]) == (0, ["PrefillWorker:1"])


def test_who_could_not_says_why_and_the_command_fails(run_dir: Path) -> None:
    code, answers, _ = control(run_dir, "clear", "--worker", "PrefillWorker:0")
    assert (code, answers[0]["message"]) == (1, "no")
    code, answers, _ = control(run_dir, "remote_prefill")
    assert code == 1
    assert [answer["message"] for answer in answers] == [
        "DecodeWorker:0 does not answer; see wavepp status",
        "PrefillWorker:0 has no control remote_prefill",
        "PrefillWorker:1 has no control remote_prefill",
    ]


def test_a_name_that_no_control_has_is_told_with_those_that_there_are(run_dir: Path) -> None:
    _, answers, _ = control(run_dir, "resum", "--worker", "PrefillWorker:0")
    assert answers[0]["message"] == (
        "PrefillWorker:0 has no control resum (did you mean resume?); workers have audit, clear_kv_blocks, describe, "
        "dump_state, pause, remote_prefill, resume, start_profile, stop_profile, timings, why"
    )


def test_of_many_replicas_each_is_named_with_what_it_answers_also_beside_one_that_hangs(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two of them nobody hears in time, or ever."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    state = json.loads((run_dir / "state.json").read_text())
    well = state["processes"][1]["url"]
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        urls = dict.fromkeys(range(12), well) | {
            3: f"http://127.0.0.1:{deaf.getsockname()[1]}",
            7: "http://127.0.0.1:9",
        }
        processes = [{"service": "PrefillWorker", "replica": at, "url": url} for at, url in urls.items()]
        write_state(run_dir, processes)
        code, answers, _ = control(run_dir, "pause")
    assert code == 1
    assert {answer["worker"]: answer["status"] for answer in answers} == {
        f"PrefillWorker:{at}": "error" if at in (3, 7) else "ok" for at in urls
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pause", "{"), "is not JSON"),
        (("pause", "[1]"), "is no JSON object"),
        (("pause", "--worker", "Prefil"), "no worker is called Prefil"),
        (("pause", '{"timeout_s": 1e400}'), "is not JSON: Number out of range"),
        (("pause", '{"timeout_s": NaN}'), "is not JSON"),
        (("pause", "[" * 100_000), "is not JSON"),
        (("pause", '{"a": ' + "[" * 985 + "]" * 985 + "}"), "is not JSON"),
        (("desc/../why",), "'desc/../why' is no name of a control"),
        (("why?x=1",), "'why?x=1' is no name of a control"),
    ],
)
def test_wrong_words_are_told_as_such(run_dir: Path, words: tuple[str, ...], sentence: str) -> None:
    code, answers, said = control(run_dir, *words)
    assert (code, answers) == (2, [])
    assert sentence in " ".join(said.replace("│", " ").split())


def test_whatever_happens_to_one_worker_the_others_are_heard(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = module.health.control

    async def asked(url: str, *given: Any) -> Any:
        if url.endswith(":9"):
            raise RecursionError
        return await ask(url, *given)

    monkeypatch.setattr(module.health, "control", asked)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    code, answers, _ = control(run_dir, "pause")
    assert (code, [each["status"] for each in answers]) == (1, ["error", "ok", "ok"])


def test_a_wait_that_no_worker_takes_is_answered_by_the_worker(run_dir: Path) -> None:
    code, answers, _ = control(run_dir, "pause", '{"timeout_s": 1e300}', "--worker", "PrefillWorker:0")
    assert (code, answers[0]["body"]) == (0, {"timeout_s": 1e300})


@pytest.mark.parametrize("processes", [[], [{"service": "PrefillWorker"}], 5, [5], None])
def test_a_launcher_of_another_version_is_left_alone(run_dir: Path, processes: Any) -> None:
    (run_dir / "state.json").write_text(json.dumps({"graph": "g", "processes": processes}))
    result = CliRunner().invoke(app, ["control", "pause", "--run-dir", str(run_dir)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        "of another version of this program, and is left out" in result.stderr or "no graph" in result.stderr
    )


def test_of_several_graphs_nobody_is_asked_unless_one_is_named(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was meant for one would pause, or empty, the other."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "state.json").write_text((run_dir / "state.json").read_text())
    monkeypatch.setattr(runs, "run_dirs", lambda: [run_dir, other])
    result = CliRunner().invoke(app, ["control", "pause"])
    assert (result.exit_code, result.stdout) == (2, "")
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "2 graphs of this user run; say which with --run-dir" in said
    assert control(other, "pause", "--worker", "PrefillWorker")[0] == 0
    monkeypatch.setattr(runs, "run_dirs", lambda: [run_dir])
    assert CliRunner().invoke(app, ["control", "pause", "--worker", "PrefillWorker"]).exit_code == 0
