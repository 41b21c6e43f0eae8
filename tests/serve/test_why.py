"""``wavepp why`` against workers that only answer one control."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app

from tests.support.run_states import write_state

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Workers:
    """A run directory whose workers answer ``why`` as told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[ThreadingHTTPServer] = []
        self.processes: list[dict[str, Any]] = []
        self.write()

    def add(self, answer: Answer, role: str | None = "prefill") -> None:
        class Control(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = json.dumps(answer(body) if self.path == "/engine/control/why" else {}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Control)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        about = None if role is None else {"engines": [{"role": role}]}
        url = f"http://127.0.0.1:{server.server_port}"
        number = len(self.processes)
        self.processes.append({"service": "PrefillWorker", "replica": number, "url": url, "about": about})
        self.write()

    def write(self) -> None:
        write_state(self.directory, self.processes)

    def why(self, *words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["why", "--run-dir", str(self.directory), *words])
        return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    for server in made.servers:
        server.shutdown()
        server.server_close()


def says(*requests: dict[str, Any]) -> Answer:
    return lambda body: {"status": "ok", "requests": requests}


def request(name: str, state: str, seconds: float = 1.0) -> dict[str, Any]:
    return {"request_id": name, "state": state, "sentence": f"is {state}", "seconds": seconds}


def test_jobs_that_no_replica_has_taken_are_counted_once_a_queue(workers: Workers) -> None:
    queues = ({"wavepp.a.m": 3}, {"wavepp.a.m": 4, "wavepp.b.m": 1000})
    for queued in queues:
        workers.add(lambda body, queued=queued: {"status": "ok", "requests": [], "jobs_queued": queued})
    code, text, error = workers.why()
    assert (code, text) == (0, "")
    assert error.splitlines()[0].startswith("1,004 jobs are in the queue, taken by no replica yet")
    assert "no request waits at a worker" in error
    assert json.loads(workers.why("--json")[1]) == []


def test_who_has_a_request_is_said_with_its_sentence(workers: Workers) -> None:
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"status": "ok", "requests": [request("a", "queued")]}

    workers.add(says(request("a", "unknown")))
    workers.add(answer)
    workers.add(says(), role="decode")
    assert workers.why("a") == (0, "PrefillWorker:1  a is queued\n", "")
    assert asked == [{"request_id": "a"}]
    code, text, _ = workers.why("a", "--json")
    assert (code, json.loads(text)) == (0, [{"worker": "PrefillWorker:1", **request("a", "queued")}])


def test_a_request_that_is_over_is_told_of_only_if_nobody_has_it(workers: Workers) -> None:
    workers.add(says(request("a", "over")))
    workers.add(says(request("a", "unknown")))
    assert workers.why("a") == (0, "PrefillWorker:0  a is over\n", "")
    workers.add(says(request("a", "holding")))
    assert workers.why("a")[1] == "PrefillWorker:2  a is holding\n"


def test_who_waits_for_the_prefill_alone_is_told_after_who_says_why(workers: Workers) -> None:
    workers.add(says(request("a", "arriving")), role="decode")
    workers.add(says(request("a", "computing")))
    assert workers.why("a")[1].splitlines() == [
        "PrefillWorker:1  a is computing",
        "PrefillWorker:0  a is arriving",
    ]


def test_of_a_job_in_the_queue_all_replicas_say_the_same_once(workers: Workers) -> None:
    for _ in range(2):
        workers.add(says(request("a", "in the queue")))
    assert workers.why("a")[1] == "PrefillWorker:0  a is in the queue\n"
    workers.add(says(request("a", "computing")))
    assert workers.why("a")[1] == "PrefillWorker:2  a is computing\n"


def test_without_an_id_those_that_wait_longest_are_listed_of_all_replicas(workers: Workers) -> None:
    workers.add(says(*(request(f"a{number}", "queued", number) for number in range(15))))
    workers.add(says(*(request(f"b{number}", "queued", number + 0.5) for number in range(15))))
    code, text, _ = workers.why()
    lines = text.splitlines()
    assert (code, len(lines)) == (0, 20)
    assert lines[:2] == ["PrefillWorker:1  b14 is queued", "PrefillWorker:0  a14 is queued"]


def test_nobody_waits_and_nobody_has_it_are_told_apart(workers: Workers) -> None:
    workers.add(says(), role=None)
    code, text, complaint = workers.why()
    assert (code, text) == (0, "")
    assert "no request waits" in complaint
    assert "(1 worker asked)" in complaint
    code, text, complaint = workers.why("a", "--json")
    assert (code, json.loads(text)) == (1, [])
    assert "no worker has request a" in complaint


def test_a_worker_that_does_not_answer_is_named(workers: Workers) -> None:
    workers.add(lambda body: {"status": "error", "message": "EngineDead: rank 1 died"})
    workers.add(says(request("a", "queued")))
    workers.processes.append({**workers.processes[0], "replica": 7, "url": "http://127.0.0.1:1"})
    workers.write()
    code, text, complaint = workers.why("a")
    assert (code, text) == (0, "PrefillWorker:1  a is queued\n")
    assert "PrefillWorker:0 at http://127.0.0.1:" in complaint
    assert "does not say: EngineDead: rank 1 died" in complaint
    assert "PrefillWorker:7 at http://127.0.0.1:1 does not say: it does not answer" in complaint


def test_where_somebody_is_silent_and_the_others_have_nothing_it_is_not_said_that_nothing_waits(
    workers: Workers,
) -> None:
    workers.add(says())
    workers.processes.append({**workers.processes[0], "replica": 7, "url": "http://127.0.0.1:1"})
    workers.write()
    code, text, complaint = workers.why()
    assert (code, text) == (1, "")
    assert "no request waits" not in complaint
    assert "whether a request waits is not known (2 workers asked, 1 of them in vain)" in complaint


def test_where_no_graph_runs_that_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["why", "--run-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no graph runs in {tmp_path}; start one with dynamo serve" in result.stderr


@pytest.mark.parametrize(
    "answer", [{}, {"requests": None}, {"requests": [1]}, {"requests": [{"request_id": "a"}]}]
)
def test_an_answer_of_another_version_keeps_nobody_from_hearing_of_the_others(
    workers: Workers, answer: dict[str, Any]
) -> None:
    workers.add(lambda body: {"status": "ok", **answer})
    workers.add(says(request("b", "queued")))
    code, out, err = workers.why()
    assert (code, out) == (0, "PrefillWorker:1  b is queued\n")
    assert "PrefillWorker:0" in err
    assert "of another version" in err


def test_a_terminal_obeys_no_request(workers: Workers) -> None:
    workers.add(says(request("a\x1b[2J\ud800", "queued")))
    assert workers.why()[1] == "PrefillWorker:0  a?[2J? is queued\n"


def test_an_id_of_bytes_that_no_id_has_is_refused(workers: Workers) -> None:
    code, _, complaint = workers.why("a\udcff")
    assert code == 2
    assert "has bytes that are no UTF-8" in " ".join(complaint.replace("│", " ").split())
