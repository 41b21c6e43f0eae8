"""``wavepp submit`` to a queue that no worker takes jobs of."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.intake import served_watch
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.intake.conftest import MakeIntake
from tests.intake.test_job_file import words
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer


def test_that_nobody_takes_jobs_is_said_and_waited_for_no_longer_than_promised(
    server: NatsServer,
    name: QueueName,
    make_intake: MakeIntake,
    queue: PrefillQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not queue.served()
    make_intake("r1", FakePrefills())
    queue.prefill([1, 2])
    assert queue.served()
    monkeypatch.setattr(served_watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(served_watch, "SAY_SECONDS", 0.2)
    monkeypatch.setattr(served_watch, "GIVE_UP_SECONDS", 1.0)
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    jobs.write_text('{"id": "a", "token_ids": [1, 2]}')
    done = CliRunner().invoke(app, words(server, QueueName(name.namespace, "nosuch"), jobs, out))
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert (
        "warning: no worker takes jobs of model nosuch in namespace tests (other queues there: tests/~"
        in said
    )
    assert "error: no worker takes jobs of model nosuch" in said
    assert "for 1 s; jobs that were sent stay queued" in said
    assert "the results of 0" in said


def test_a_worker_that_is_long_about_a_job_is_no_lack_of_workers(
    server: NatsServer,
    name: QueueName,
    make_intake: MakeIntake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_intake("r1", FakePrefills(seconds=1.5))
    monkeypatch.setattr(served_watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(served_watch, "SAY_SECONDS", 0.4)
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    jobs.write_text('{"id": "a", "token_ids": [1, 2]}')
    done = CliRunner().invoke(app, words(server, name, jobs, out))
    assert (done.exit_code, "warning" in done.output) == (0, False), done.output


def test_a_server_that_hangs_ends_the_whole_file_and_not_one_job_after_the_other(
    server: NatsServer, name: QueueName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(served_watch, "UNREACHED_SECONDS", 2.0)
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    jobs.write_text("".join(f'{{"id": "{n}", "token_ids": [1, 2]}}\n' for n in range(20)))
    began = time.monotonic()
    with contextlib.ExitStack() as hung:
        timer = threading.Timer(1.0, hung.enter_context, [server.stopped()])
        timer.start()
        done = CliRunner().invoke(app, [*words(server, name, jobs, out), "--ahead", "2"])
        timer.join()
    assert done.exit_code == 1
    assert "error: the NATS server has not been reached for 2 s" in " ".join(done.output.split())
    assert time.monotonic() - began < 30
