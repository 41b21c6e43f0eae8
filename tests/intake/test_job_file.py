"""``wavepp submit``: jobs in, answers out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.intake.names import QueueName

from tests.intake.conftest import MakeIntake
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer


def words(server: NatsServer, name: QueueName, jobs: Path | str, out: Path | str) -> list[str]:
    where = ["--model", name.model, "--namespace", name.namespace, "--server", server.url]
    return ["submit", str(jobs), "--out", str(out), *where]


def test_a_file_of_jobs_becomes_a_file_of_answers(
    server: NatsServer, name: QueueName, make_intake: MakeIntake, tmp_path: Path
) -> None:
    prefills = FakePrefills()
    make_intake("r1", prefills)
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"id": "a", "token_ids": [1, 2], "priority": 2},
        {"id": 7, "token_ids": [1, 3], "handoff": True},
        {"id": "bad", "token_ids": [1, 900]},
        {"id": "odd", "token_ids": [1], "temp": 1},
        {"id": [1], "token_ids": [1]},
        {"id": "a", "token_ids": [1, 2]},
    ]
    jobs.write_text("\n".join(json.dumps(line) for line in lines) + "\nnot json\n")
    for _ in range(2):
        done = CliRunner().invoke(app, words(server, name, jobs, out))
        assert done.exit_code == 1, done.output
        assert "4 of 7 jobs failed" in done.output
        results = [json.loads(line) for line in out.read_text().splitlines()]
        assert [each["id"] for each in results] == ["a", 7, "bad", "odd", [1], "a", None]
        assert [each.get("first_token") for each in results] == [3, 4, None, None, None, 3, None]
        assert (results[0]["replica"], results[0]["attempt"], results[0]["prompt_tokens"]) == ("r1", 1, 2)
        assert results[1]["handoff"]["port"] == 4242
        assert "outside the vocabulary" in results[2]["error"]
        assert "temp" in results[3]["error"]
    # The second time nothing was run.
    assert len(prefills.asked) == 2


def test_without_a_server_or_a_graph_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text('{"id": "a", "token_ids": [1]}\n')
    monkeypatch.setattr("wavepp_worker.intake.prefill_queue.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("wavepp_worker.intake.running_queues.run_dirs", lambda: [])
    monkeypatch.delenv("NATS_SERVER", raising=False)
    given = ["submit", str(jobs), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, given)
    assert (done.exit_code, "--PrefillWorker.intake=nats" in done.output) == (2, True)


def test_interrupted_it_leaves_whole_lines_and_its_jobs_go_on(
    server: NatsServer, name: QueueName, make_intake: MakeIntake, tmp_path: Path
) -> None:
    prefills = FakePrefills(admits=1)
    make_intake("r1", prefills)
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "out.jsonl"
    jobs.write_text("".join(json.dumps({"id": str(n), "token_ids": [1, n]}) + "\n" for n in range(6)))
    command = [
        sys.executable,
        "-c",
        "from wavepp_worker.cli import app; app()",
        *words(server, name, jobs, out),
    ]
    prefills.seconds = 0.5
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        while not out.exists() or not out.read_text():
            time.sleep(0.02)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted: the results of" in said
    assert "of 6 jobs are written" in said
    assert "send them again for the rest" in said
    assert all(json.loads(line)["first_token"] for line in out.read_text().splitlines())
    prefills.seconds = 0
    done = CliRunner().invoke(app, words(server, name, jobs, out))
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["first_token"] for line in out.read_text().splitlines()] == list(range(1, 7))
    assert len(prefills.asked) == 6
