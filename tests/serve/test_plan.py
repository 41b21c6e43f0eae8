"""Graphs by name, and what a plan says before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import Graph, Service
from wavepp_worker.serve.backoff import Backoff
from wavepp_worker.serve.cli import app
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.plan import DEMO_MODEL, Options, Plan, make_plan

from tests.support.graph_process import SERVE

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    for name in list(os.environ):
        if name.startswith("DYN_"):
            monkeypatch.delenv(name)


def flags(plan: Plan, service: str) -> list[tuple[str, ...]]:
    return [process.argv for process in plan.processes if process.service == service]


@pytest.mark.parametrize(
    "target",
    [
        "graphs:disagg_wavepp",
        "graphs.disagg_wavepp",
        "graphs/disagg_wavepp.py",
        "graphs.disagg_wavepp:disagg_wavepp",
    ],
)
def test_graph_by_any_name(target: str) -> None:
    graph = resolve(target)
    assert graph.name == "disagg_wavepp"
    assert [service.name for service in graph.services] == ["Frontend", "DecodeWorker", "PrefillWorker"]


@pytest.mark.parametrize("target", ["graphs", "graphs:nope", "nope:x", "graphs/nope.py", "os", "", ":x"])
def test_unknown_graph_is_named(target: str) -> None:
    with pytest.raises(ConfigError, match=f"^graph {target}: "):
        resolve(target)


def test_module_with_one_graph_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "any.py").write_text(
        "from wavepp_worker.serve import Graph, Service\nmine = Graph('mine', (Service('A', 'a'),))\n"
    )
    assert resolve(str(tmp_path / "any.py")).name == "mine"


@pytest.mark.parametrize("names", [(), ("A", "A"), ("Common",)])
def test_graph_with_bad_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="graph g"):
        Graph("g", tuple(Service(name, "m") for name in names))


def test_default_disaggregated_graph() -> None:
    plan = make_plan(resolve("graphs:disagg_wavepp"), {}, Options())
    assert [process.label for process in plan.processes] == [
        "Frontend:0",
        "DecodeWorker:0",
        "PrefillWorker:0",
        "PrefillWorker:1",
    ]
    assert all("--pp=2" in argv for argv in flags(plan, "PrefillWorker"))
    assert plan.wants_demo
    assert plan.own_broker
    assert plan.own_store
    ports = [process.port for process in plan.processes]
    assert len(set(ports)) == 4
    assert max(ports) <= 32767
    assert "--http-host=127.0.0.1" in flags(plan, "Frontend")[0]
    filled = plan.with_model(Path("/models/demo"))
    assert not any(DEMO_MODEL in word for process in filled.processes for word in process.argv)
    assert "--model=/models/demo" in flags(filled, "DecodeWorker")[0]


@pytest.mark.parametrize("name", ["disagg_wavepp", "agg_wavepp"])
def test_configuration_files_fit_their_graphs(name: str) -> None:
    from wavepp_worker.serve.settings import read_file

    plan = make_plan(resolve(f"graphs:{name}"), read_file(Path(f"configs/{name}.yaml")), Options())
    assert plan.processes[0].service == "Frontend"
    assert plan.model == "SmolLM2-135M-Instruct"


def test_model_given_once_is_everybodys(tiny_llama: Path) -> None:
    config = {"PrefillWorker": {"model": str(tiny_llama), "served_model_name": "tiny"}}
    plan = make_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert not plan.wants_demo
    assert plan.model == "tiny"
    assert all(f"--model={tiny_llama}" in process.argv for process in plan.processes)
    assert "--served-model-name=tiny" in flags(plan, "DecodeWorker")[0]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"PrefillWorker": {"ppp": 3}}, "PrefillWorker.ppp: unknown"),
        ({"PrefillWorker": {"pp": "zero"}}, "PrefillWorker.pp: "),
        ({"PrefillWorker": {"chunk": 0}}, "PrefillWorker.chunk: "),
        ({"PrefillWorker": {"partition": "10,x"}}, "PrefillWorker.partition: "),
        ({"DecodeWorker": {"dtype": "int8"}}, "DecodeWorker.dtype: "),
        ({"Frontend": {"router_mode": "psychic"}}, "Frontend.router_mode"),
        ({"Common": {"model": "/nowhere"}}, ".model: /nowhere is no directory"),
        ({"Common": {"model": "/tmp"}}, ".model: /tmp holds no config.json"),
        ({"Frontend": {"http_port": "x"}}, "Frontend.http_port: "),
        ({"Frontend": {"ServiceArgs": {"workers": 2}}}, "Frontend.ServiceArgs.workers: "),
    ],
)
def test_bad_configuration_fails_before_anything_starts(
    config: dict[str, dict[str, object]], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert key in str(caught.value)


def test_gpus_go_to_one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    config = {"PrefillWorker": {"ServiceArgs": {"resources": {"gpu": 2}}}}
    plan = make_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert [process.env.get("CUDA_VISIBLE_DEVICES") for process in plan.processes] == [
        None,
        None,
        "3,5",
        "6,7",
    ]
    config["DecodeWorker"] = {"ServiceArgs": {"resources": {"gpu": 1}}}
    with pytest.raises(ConfigError, match=r"PrefillWorker\.ServiceArgs\.resources\.gpu"):
        make_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_default_port_gives_way_but_an_asked_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", (Service("Front", "m", kind="frontend"),))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("wavepp_worker.serve.plan._DEFAULT_PORT", taken)
        plan = make_plan(graph, {}, Options())
        assert plan.processes[0].port > taken
        assert plan.notes == (f"port {taken} is in use, so HTTP is on {plan.processes[0].port}",)
        with pytest.raises(ConfigError, match="--port: "):
            make_plan(graph, {}, Options(port=taken))
        with pytest.raises(ConfigError, match=r"Front\.http_port: "):
            make_plan(graph, {"Front": {"http_port": taken}}, Options())


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_host_of_another_machine(host: str) -> None:
    with pytest.raises(ConfigError, match="--host: "):
        make_plan(resolve("graphs:disagg_wavepp"), {}, Options(host=host))


def test_one_service_needs_a_meeting_point(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> None:
    graph, config = resolve("graphs:disagg_wavepp"), {"Common": {"model": str(tiny_llama)}}
    alone = Options(only="PrefillWorker")
    with pytest.raises(ConfigError, match="DYN_FILE_KV"):
        make_plan(graph, config, alone)
    monkeypatch.setenv("DYN_FILE_KV", "/tmp/shared")
    with pytest.raises(ConfigError, match="DYN_ZMQ_BROKER_URL"):
        make_plan(graph, config, alone)
    monkeypatch.setenv("DYN_ZMQ_BROKER_URL", "xsub=tcp://127.0.0.1:1 , xpub=tcp://127.0.0.1:2")
    plan = make_plan(graph, config, alone)
    assert {process.service for process in plan.processes} == {"PrefillWorker"}
    assert plan.base_url is None
    assert not plan.own_store
    assert not plan.own_broker
    with pytest.raises(ConfigError, match=r"--service-name: .*Nobody"):
        make_plan(graph, config, Options(only="Nobody"))


def test_dry_run_shows_the_merged_configuration_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("PrefillWorker:\n  pp: 4\n  ServiceArgs: {workers: 3, envs: {A: one}}\n")
    words = ["serve", "graphs:disagg_wavepp", "-f", str(file), "--PrefillWorker.ServiceArgs.envs.B=two words"]
    result = typer.testing.CliRunner().invoke(
        app, [*words, "--dry-run", "--PrefillWorker.partition=10,8,6,6"]
    )
    assert result.exit_code == 0, result.output
    assert result.output.count("# PrefillWorker:") == 3
    assert "A=one B='two words'" in result.output
    assert "--partition=10,8,6,6" in result.output
    assert "--pp=4" in result.output
    assert "DYN_TCP_RPC_HOST=127.0.0.1" in result.output


def test_bad_key_ends_the_command_with_one_sentence() -> None:
    done = subprocess.run(
        [*SERVE, "graphs:disagg_wavepp", "--PrefillWorker.pp=0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: PrefillWorker.pp: should be greater than or equal to 1")
    assert done.stderr.count("\n") == 1


def test_misspelt_option_is_not_taken_for_an_override() -> None:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-rum"])
    assert result.exit_code == 2


def test_launcher_does_not_load_torch() -> None:
    words = ["serve", "graphs:disagg_wavepp", "--dry-run"]
    code = (
        "import sys; from typer.testing import CliRunner; from wavepp_worker.serve.cli import app; "
        f"assert CliRunner().invoke(app, {words!r}).exit_code == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_backoff_doubles_up_to_its_limit_and_forgets_after_a_good_life() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(61.0) == 1
    assert backoff.after(1.0) == 2
