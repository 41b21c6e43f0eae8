from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake import running_queues as module
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.running_queues import RunningQueue, choose_queue, running_queues
from wavepp_worker.setting_names import flag_of

from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer

TINY, ASCII = RunningQueue("tiny", "dynamo", {"NATS_SERVER": "a"}), RunningQueue("tiny-ascii", "dynamo")


def test_the_graph_that_is_meant_is_found() -> None:
    assert choose_queue([], "tiny", None) is None
    assert choose_queue([TINY], None, None) == TINY
    assert choose_queue([TINY, ASCII], "tiny", None) == TINY
    # A deployment of several launchers is one.
    assert choose_queue([ASCII, ASCII], None, "dynamo") == ASCII
    other = RunningQueue("tiny", "dynamo", {"NATS_SERVER": "b"})
    assert choose_queue([TINY, other], None, None, server_known=True) == TINY


@pytest.mark.parametrize(
    ("queues", "asked", "sentence"),
    [
        (
            [TINY, ASCII],
            ("tny", None),
            r"^--model: no graph .* jobs of tny \(did you mean tiny\?\); .* tiny, tiny-asc",
        ),
        ([TINY, ASCII], (None, None), r"^--model: .* tiny, tiny-ascii; name one of these with --model$"),
        ([TINY], ("tiny", "other"), r"^--namespace: no graph .* in other; some do in dynamo;"),
        (
            [TINY, RunningQueue("tiny", "b")],
            (None, None),
            r"^--namespace: .* b, dynamo; name one .* with --namespace$",
        ),
        (
            [TINY, RunningQueue("tiny", "dynamo")],
            ("tiny", None),
            r"^--server: 2 graphs take jobs here of tiny",
        ),
    ],
)
def test_what_is_not_clear_is_asked_for(
    queues: list[RunningQueue], asked: tuple[str | None, str | None], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_queue(queues, *asked, spell=flag_of)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which those of runs are."""
    folder = tmp_path / "runs"
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setattr(module, "run_dirs", lambda: sorted(folder.iterdir()))
    folder.mkdir()
    return folder


def run(folder: Path, model: str, namespace: str, queue: dict[str, str] | None) -> None:
    own = folder / model
    own.mkdir()
    state = {"processes": [], "model": model, "namespace": namespace, "queue": queue}
    (own / "state.json").write_text(json.dumps(state))


def test_senders_find_the_server_of_a_graph_and_its_password(runs: Path, tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", 'authorization { user: "u", password: "p" }')
    server.start()
    known = {"NATS_SERVER": server.url, "NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p"}
    run(runs, "served", "own", known)
    run(runs, "none", "own", None)
    assert [queue.model for queue in running_queues()] == ["served"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, value)
        intake = Intake(FakePrefills(), IntakeConfig(intake="nats"), QueueName("own", "served"))
    intake.start("r1")
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    jobs.write_text('{"id": "a", "token_ids": [1, 2]}')
    try:
        with PrefillQueue("served") as queue:
            assert queue.prefill([1, 2]).first_token == 3
        for words in ([], ["--model", "served"]):
            done = CliRunner().invoke(app, ["submit", str(jobs), "--out", str(out), *words])
            assert done.exit_code == 0, done.output
            assert json.loads(out.read_text())["first_token"] == 3
    finally:
        intake.close()
        server.close()
    with pytest.raises(ConfigError, match=r"^model: no graph .* \(did you mean served"):
        PrefillQueue("serve").open()
    done = CliRunner().invoke(app, ["submit", str(jobs), "--out", str(out), "--model", "serve"])
    assert (done.exit_code, "did you mean served?" in done.output) == (2, True)


def test_with_a_server_given_only_the_name_is_asked_for(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in ("one", "two"):
        run(runs, model, "own", {})
    monkeypatch.setenv("NATS_SERVER", "nats://127.0.0.1:9")
    jobs = tmp_path / "jobs"
    jobs.write_text('{"id": "a", "token_ids": [1, 2]}')
    done = CliRunner().invoke(app, ["submit", str(jobs), "--out", str(tmp_path / "out")])
    assert (done.exit_code, "name one of these with --model" in done.output) == (2, True)
    assert "--server" not in done.output
